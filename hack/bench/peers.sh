#!/bin/sh
# Fetches the peers and measures Runnel beside them: NATS JetStream is built from its Go module, Kafka's jars come from Maven (which needs
# mvn and a Java of 17 or newer; on Debian they are installed when this runs as root). Flags go to the benchmark.
#
#   hack/bench/peers.sh [-shrink 10] [-only runnel,kafka]
#
# What is fetched stays outside the tree, keyed by version.
set -eu
cd "$(dirname "$0")/../.."

for tool in java mvn; do
	if ! command -v "$tool" >/dev/null; then
		if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
			echo "bench-peers: $tool is missing: install a JDK of 17 or newer, and Maven" >&2
			exit 1
		fi
		apt-get update -q && apt-get install -y -q --no-install-recommends openjdk-17-jre-headless maven >&2
	fi
done

cache=${RUNNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/runnel}
libs=$cache/kafka-$(git hash-object hack/bench/peers/kafka/pom.xml)
if [ ! -d "$libs" ]; then
	echo "fetching Kafka (once per version) ..." >&2
	mkdir -p "$cache"
	new=$(mktemp -d "$cache/.kafka.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	mvn -q -B -f hack/bench/peers/kafka/pom.xml dependency:copy-dependencies -DoutputDirectory="$new" >&2
	chmod 755 "$new"
	[ -d "$libs" ] || mv "$new" "$libs"
fi
nats=$(hack/tools/bin.sh nats-server)

program=$(mktemp -d)
trap 'rm -rf "$program" "${new:-/nonexistent}"' EXIT
(cd hack/bench/peers && CGO_ENABLED=0 GOWORK=off go build -o "$program/peers" .)
"$program/peers" -runnel bin/runnel -nats-server "$nats/nats-server" -kafka-libs "$libs" "$@"
