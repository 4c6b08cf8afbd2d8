#!/bin/sh
# What a newcomer types in the first five minutes, with its results checked; then a million records end to end, and what
# `runnel log verify` says of the data, before and after one flipped byte. Needs `make build`, and the default ports free.
set -eu
cd "$(dirname "$0")/.."
PATH=$PWD/bin:$PATH
export PATH

dir=$(mktemp -d)
data=$dir/data
# shellcheck disable=SC2317 # called by the trap
finish() {
	status=$?
	runnel dev stop --data "$data" >/dev/null 2>&1 || true
	rm -rf "$dir"
	exit "$status"
}
trap finish EXIT
trap 'exit 1' HUP INT TERM

say() { printf '$ %s\n' "$*"; }
fail() {
	echo "first-minutes: $*" >&2
	exit 1
}

say runnel dev --detach
runnel dev --detach --data "$data"
say runnel topic create orders -p 3
runnel topic create orders -p 3
say 'seq 5 | runnel produce orders'
seq 5 | runnel produce orders
say runnel consume orders --until-end
runnel consume orders --until-end >"$dir/got"
sort -n "$dir/got"
seq 5 >"$dir/want"
sort -n "$dir/got" | cmp - "$dir/want" || fail "consume did not print what produce was given"

say grpcurl … runnel.v1.Producer/Publish
grpcurl -plaintext -d '{"topic":"orders","records":[{"text":"hi"}]}' localhost:7650 runnel.v1.Producer/Publish
runnel consume orders --until-end | grep -qx hi || fail "the record that grpcurl published is not there"

say 'runnel topic create t -p 1; seq 1000000 | runnel produce t; runnel consume t --until-end | cmp - …'
seq 1000000 >"$dir/want"
runnel topic create t -p 1
runnel produce t <"$dir/want"
runnel consume t --until-end | cmp - "$dir/want" || fail "a million records came back changed"

say runnel dev stop
runnel dev stop --data "$data"
pgrep -f "$data" >/dev/null 2>&1 && fail "runnel dev stop left processes running"

say runnel log verify
runnel log verify "$data/broker-1"

# One byte in the middle of the largest segment.
segment=$(find "$data/broker-1" -name '????????????????????.log' -exec ls -S {} + | head -n 1)
[ -n "$segment" ] || fail "no segment under $data/broker-1"
middle=$(($(wc -c <"$segment") / 2))
byte=$(od -An -tu1 -j "$middle" -N 1 "$segment" | tr -d ' ')
# shellcheck disable=SC2059 # the format is the byte
printf "\\$(printf '%03o' $((byte ^ 1)))" | dd of="$segment" bs=1 seek="$middle" conv=notrunc 2>/dev/null
say 'runnel log verify, after one flipped byte'
status=0
runnel log verify "$data/broker-1" >"$dir/verdict" 2>&1 || status=$?
cat "$dir/verdict"
[ "$status" -eq 1 ] || fail "log verify exited with $status after a flipped byte, want 1"
grep -q "$(basename "$segment")" "$dir/verdict" || fail "log verify does not name $segment"

echo "first-minutes: ok"
