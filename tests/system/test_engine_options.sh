#!/usr/bin/env bash
# kvpool-test: parallel static
# kvengine names the option that was meant, where one begins alike, and the list of all.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
build=${BUILD:-$top/build}
says() { # WORDS OPTION...: refused as wrong usage, in these words
	local words=$1 said status=0
	shift
	said=$("$build/kvengine" "$@" 2>&1) || status=$?
	[ "$status" = 2 ] && [ "$said" = "kvengine: $words kvengine --help lists the options" ] && return
	echo "kvengine $*: status $status, says: $said"
	exit 1
}
says 'unknown option --promt; did you mean --prompt?' --promt x
says 'unknown option --block_tokens=4; did you mean --block-tokens?' --block_tokens=4
says 'unknown option --bogus;' --bogus
says '--model needs a value;' --model
echo "who mistypes an option is told the nearest"
