#!/bin/sh
# Runs every fuzz target of the tree, each for the given time (30s) or number of executions (10000x), and fails on a finding.
# A finding stays as a file under the package's testdata/fuzz, from where `go test` replays it.
set -eu

budget=${1:-30s}
cd "$(dirname "$0")/.."

log=$(mktemp)
trap 'rm -f "$log"' EXIT

failed=0
count=0
# One line per target: folder, name.
targets=$(git ls-files -co --exclude-standard -- '*_test.go' | xargs grep -HoE '^func Fuzz[A-Za-z0-9_]*' |
	sed -E 's#^(.*)/[^/]*:func (Fuzz.*)$#\1 \2#' | sort -u)
while read -r dir name; do
	[ -n "$dir" ] || continue
	count=$((count + 1))
	echo "--- $dir $name ($budget)"
	if go test -run '^$' -fuzz "^$name\$" -fuzztime "$budget" "./$dir" >"$log" 2>&1; then
		grep -E '^fuzz: elapsed' "$log" | tail -n 1
	elif grep -q 'context deadline exceeded' "$log" && ! grep -qE 'Failing input|panic:|fuzzing process hung' "$log"; then
		# The toolchain's own race (golang/go#75804): the end of -fuzztime is reported as a failure, without an input.
		grep -E '^fuzz: elapsed' "$log" | tail -n 1
	else
		cat "$log"
		failed=$((failed + 1))
	fi
done <<EOF
$targets
EOF

echo "fuzz: $count targets, $failed with findings"
if [ "$count" -eq 0 ]; then
	echo "fuzz: no target found" >&2
	exit 1
fi
[ "$failed" -eq 0 ]
