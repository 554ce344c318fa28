#!/usr/bin/env bash
# kvpool-test: parallel static
# The C sources are formatted, the manuals are free of mistakes groff knows, and scripts parse.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
cd "$top"
if command -v clang-format >/dev/null; then make -s format-check; else echo "clang-format is not installed: not looked at"; fi
bad=0
for page in daemon/*.8 client/*/*.[13] kernels/*.3; do
	[ -e "$page" ] || continue
	said=$(groff -man -Tutf8 -ww -z "$page" 2>&1) || bad=1
	[ -z "$said" ] || { echo "$page: $said"; bad=1; }
done
for script in tests/run tests/*/* .ci/run; do
	[ -f "$script" ] || continue
	case $(head -c 40 "$script" | head -1 | tr -d '\0') in
	*bash*|'#!/bin/sh'*) bash -n "$script" || bad=1 ;;
	*python3*) python3 -c 'import ast, sys; ast.parse(open(sys.argv[1]).read())' "$script" || bad=1 ;;
	esac
done
exit $bad
