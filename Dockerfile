# One static binary in an empty image: broker, etcd server, CLI.
#
#   docker build -t runnel --build-arg VERSION="$(git describe --tags --always)" .
#   docker run --rm runnel version
FROM golang:1.26 AS build
WORKDIR /src
COPY go.mod go.sum ./
RUN go mod download
COPY . .
ARG VERSION=
ARG COMMIT=
ARG DATE=
RUN CGO_ENABLED=0 go build -trimpath -buildvcs=false -o /out/runnel \
    -ldflags "-s -w \
      -X runnel.dev/runnel/internal/version.Version=${VERSION} \
      -X runnel.dev/runnel/internal/version.Commit=${COMMIT} \
      -X runnel.dev/runnel/internal/version.Date=${DATE}" \
    ./cmd/runnel
RUN mkdir /out/data /out/tmp

FROM scratch
COPY --from=build /etc/ssl/certs/ca-certificates.crt /etc/ssl/certs/ca-certificates.crt
COPY --from=build --chown=65532:65532 /out/data /var/lib/runnel
COPY --from=build --chown=65532:65532 /out/tmp /tmp
COPY --from=build /out/runnel /usr/local/bin/runnel
ENV PATH=/usr/local/bin HOME=/var/lib/runnel
USER 65532:65532
WORKDIR /var/lib/runnel
VOLUME /var/lib/runnel
# gRPC; HTTP (metrics, health).
EXPOSE 7650 7651
ENTRYPOINT ["/usr/local/bin/runnel"]
CMD ["help"]
