#!/bin/sh
# etcd's data of some time ago is put back under a running cluster of three: brokers refuse it and say what to do; after
# `runnel etcd recover` every record that was acknowledged is there. Needs `make build`; takes free ports.
set -eu
cd "$(dirname "$0")/.."
PATH=$PWD/bin:$PATH
export PATH

dir=$(mktemp -d)
data=$dir/data
# shellcheck disable=SC2317 # called by the trap
finish() {
	status=$?
	if [ "$status" -ne 0 ]; then
		tail -n 20 "$data"/*.log 2>/dev/null || true
	fi
	runnel dev stop --data "$data" >/dev/null 2>&1 || true
	rm -rf "$dir"
	exit "$status"
}
trap finish EXIT
trap 'exit 1' HUP INT TERM

say() { printf '$ %s\n' "$*"; }
fail() {
	echo "etcd-recover: $*" >&2
	exit 1
}
dev() { runnel dev "$@" --data "$data"; }
servers() { runnel dev status --data "$data" -o json | sed -n 's/.*"address": "\(.*\)".*/\1/p' | tail -n 3 | paste -sd, -; }
# produce TOPIC FROM TO: the numbers, each acknowledged or the script ends.
produce() { seq "$2" "$3" | runnel produce "$1"; }
# check TOPIC TO: the topic holds 1 to TO, each once.
check() {
	runnel consume "$1" --until-end | sort -n >"$dir/got"
	seq 1 "$2" >"$dir/want"
	cmp "$dir/got" "$dir/want" || fail "$1 does not hold 1 to $2: $(wc -l <"$dir/got") records"
}
# eventually COMMAND…: for up to 30 s.
eventually() {
	tries=0
	until "$@" >"$dir/last" 2>&1; do
		tries=$((tries + 1))
		[ "$tries" -lt 60 ] || { cat "$dir/last" >&2; fail "not within 30 s: $*"; }
		sleep 0.5
	done
}

say runnel dev --detach --brokers 3
runnel dev --detach --brokers 3 --port 0 --data "$data"
RUNNEL_SERVER=$(servers)
export RUNNEL_SERVER
runnel topic create orders -p 3 --replicas 3
produce orders 1 20000

say 'runnel dev stop etcd; cp -r etcd backup; runnel dev start etcd'
dev stop etcd
cp -r "$data/etcd" "$dir/backup"
dev start etcd

say 'more records, another topic, and every leader moves'
produce orders 20001 40000
eventually runnel topic create later -p 3 --replicas 3
produce later 1 10000
for broker in 1 2 3; do
	dev stop "$broker"
	dev start "$broker"
done
produce orders 40001 50000
produce later 10001 20000
check orders 50000
check later 20000

say 'the old data is put back'
dev stop etcd
rm -rf "$data/etcd"
cp -r "$dir/backup" "$data/etcd"
dev start etcd

refused() {
	for broker in 1 2 3; do
		grep -q 'this etcd is refused' "$data/broker-$broker.log" || return 1
	done
}
eventually refused
grep -h -o 'run: runnel etcd recover [^"]*' "$data/broker-1.log" | tail -n 1
if produce orders 50001 50001 --timeout 3s --delivery-timeout 3s >"$dir/last" 2>&1; then
	fail "a record was acknowledged under an etcd that went back in time"
fi

say runnel etcd recover --data DIR
runnel etcd recover --data "$data" | tee "$dir/plan"
grep -q 'later.*rebuilt\|later.*kept' "$dir/plan" || fail "the plan does not name the topic that etcd has forgotten"
say runnel etcd recover --data DIR --apply
runnel etcd recover --data "$data" --apply --backup "$dir/saved" >"$dir/plan"
[ -s "$dir/saved" ] || fail "no backup was saved"

check orders 50000
check later 20000
produce orders 50001 51000
check orders 51000
eventually runnel topic create afterwards -p 1 --replicas 3
produce afterwards 1 100
check afterwards 100
runnel etcd recover --data "$data" --apply
echo "etcd-recover: ok"
