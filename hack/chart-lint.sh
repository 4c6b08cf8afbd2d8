#!/bin/sh
# Lints charts/runnel and checks what it renders: every CRD once, kept unless asked otherwise, nothing without crds.install, and a
# refusal of values that it does not know. Needs helm in the PATH; talks to no cluster.
set -eu
cd "$(dirname "$0")/.."

chart=charts/runnel
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
# What the caller's own Helm is configured with, plugins included, stays out of it.
export HELM_CONFIG_HOME="$out/config" HELM_CACHE_HOME="$out/cache" HELM_DATA_HOME="$out/data"

fail() {
	echo "chart-lint: $*" >&2
	exit 1
}

# expect FILE PATTERN COUNT
expect() {
	found=$(grep -c -e "$2" "$out/$1" || true)
	[ "$found" -eq "$3" ] || fail "$1 has $found lines that match '$2', want $3"
}

helm lint --strict --quiet "$chart"
helm template runnel "$chart" >"$out/default"
helm template runnel "$chart" --set crds.keep=false >"$out/not-kept"
helm template runnel "$chart" --set crds.install=false >"$out/none"

crds=$(find config/crd/bases -name '*.yaml' | wc -l)
expect default '^kind: ' "$crds"
expect default '^kind: CustomResourceDefinition$' "$crds"
expect default '^    helm.sh/resource-policy: keep$' "$crds"
for crd in config/crd/bases/*.yaml; do
	expect default "^  name: $(basename "$crd" .yaml | sed 's/^runnel.dev_//').runnel.dev\$" 1
	cmp -s "$crd" "$chart/files/crds/$(basename "$crd")" || fail "$crd is not what the chart holds; run 'make manifests'"
done
expect default '^ *rule: ' "$(cat config/crd/bases/*.yaml | grep -c '^ *rule: ')"
expect not-kept '^kind: CustomResourceDefinition$' "$crds"
expect not-kept 'helm.sh/resource-policy' 0
expect none '^kind: ' 0
if helm template runnel "$chart" --set crds.instal=true >"$out/typo" 2>&1; then
	fail "a value that does not exist, crds.instal, was accepted"
fi
echo "chart-lint: ok, $crds CRDs"
