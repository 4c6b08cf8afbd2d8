#!/bin/sh
# Fails when generated code, or go.mod and go.sum, are not what their sources say. Works in a tree with other changes, too:
# it compares the tree before and after generating.
set -eu
cd "$(dirname "$0")/.."

state() {
	git diff HEAD
	git ls-files -o --exclude-standard | while read -r file; do
		git hash-object -- "$file"
		echo "$file"
	done
}

failed=0

before=$(state | git hash-object --stdin)
make generate
after=$(state | git hash-object --stdin)
if [ "$before" != "$after" ]; then
	echo "drift: generated code differs from its sources; run 'make generate' and commit the result:" >&2
	git status --short >&2
	failed=1
fi

# Generated code whose source is gone is not touched by generating.
for file in $(git ls-files -co --exclude-standard -- 'api/*.pb.go'); do
	source=${file%.pb.go}
	if [ -f "$file" ] && [ ! -f "${source%_grpc}.proto" ]; then
		echo "drift: $file has no .proto any more; delete it" >&2
		failed=1
	fi
done

if ! go mod tidy -diff; then
	echo "drift: go.mod or go.sum is not tidy; run 'go mod tidy' and commit the result" >&2
	failed=1
fi

[ "$failed" -eq 0 ] && echo "drift: none"
