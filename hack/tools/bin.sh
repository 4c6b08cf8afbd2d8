#!/bin/sh
# Prints the folder that holds the built tools of one module under hack/tools, and builds them first when they are absent.
#
#   hack/tools/bin.sh MODULE        e.g. PATH="$(hack/tools/bin.sh buf):$PATH" buf --version
#
# Every tool has a module of its own, so that the versions one tool needs never move those of another or of Runnel itself.
# Built tools live outside the tree, keyed by the module's go.mod, go.sum and the Go version: a clone never builds a tool
# that another clone of the same commit has built, and a new pin never picks up an old binary.
set -eu

if [ $# -ne 1 ]; then
	echo "usage: hack/tools/bin.sh MODULE (one of the folders of hack/tools)" >&2
	exit 2
fi
module=$(cd "$(dirname "$0")" && pwd)/$1
if [ ! -f "$module/go.mod" ]; then
	echo "hack/tools/bin.sh: no module $module" >&2
	exit 2
fi

key=$({ cat "$module/go.mod" "$module/go.sum"; go env GOVERSION GOOS GOARCH; } | git hash-object --stdin)
tools=${RUNNEL_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/runnel}/tools
bin=$tools/$1-$key

if [ ! -d "$bin" ]; then
	echo "building $1 (once per version) ..." >&2
	mkdir -p "$tools"
	new=$(mktemp -d "$tools/.$1.XXXXXX")
	trap 'rm -rf "$new"' EXIT
	(cd "$module" && CGO_ENABLED=0 GOWORK=off GOFLAGS=-mod=readonly go build -trimpath -ldflags '-s -w' -o "$new/" tool) >&2
	chmod 755 "$new"
	# When two builds race, the second finds the first one's folder and drops its own.
	[ -d "$bin" ] || mv "$new" "$bin"
fi
echo "$bin"
