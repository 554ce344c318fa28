#!/usr/bin/env bash
# kvpool-test: parallel static
# kvengine names the option that was meant, where one begins alike, and the list of all; of a value that is none it says what would do.
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
would_do() { # WORDS OPTION...: refused as wrong usage, and these words say what is taken
	local words=$1 said status=0
	shift
	said=$("$build/kvengine" "$@" 2>&1) || status=$?
	[ "$status" = 2 ] && [ "$said" = "kvengine: $words" ] && return
	echo "kvengine $*: status $status, says: $said"
	exit 1
}
would_do '--steps many: give a number from 0 to 1048576' --steps many
would_do '--steps -1: give a number from 0 to 1048576' --steps -1
would_do '--chunk 0: give a number from 1 to 4096' --chunk 0
would_do '--block-tokens 16x: give a number from 1 to 1048576' --block-tokens 16x
would_do '--pace 60001: give a number from 0 to 60000' --pace 60001
would_do '--kv int9: give f32, f16, bf16, fp8, int8 or int4, or two of them: K:V' --kv int9
would_do '--kv int8:: give f32, f16, bf16, fp8, int8 or int4, or two of them: K:V' --kv int8:
would_do '--layout rows: give tiled, hnd or nhd' --layout rows
would_do '--kv int8 and int4 need --layout tiled' --model m --prompt x --kv f16:int4 --layout hnd
would_do '--no-kv computes all again: it goes with --attn full only' --model m --prompt x --no-kv --attn window:4
would_do '--resident goes with --attn sparse only' --model m --prompt x --resident 4
would_do 'give either --prompt or --prompt-file' --model m --prompt x --prompt-file y
would_do 'give either --prompt or --prompt-file' --model m
would_do '--model is missing; kvengine --help lists the options' --prompt x
would_do 'x: options only; a prompt goes after --prompt' --model m x
"$build/kvengine" --help | grep -q '^  *--prompt-file'
status=0
"$build/kvengine" --model "$top/none.kvm" --prompt x >/dev/null 2>&1 || status=$?
[ "$status" = 1 ] || { echo "a model that is not there: status $status"; exit 1; }
# the model's context is 1024 tokens: what was not generated is told, and the text is there all the same
status=0
said=$("$build/kvengine" --no-pool --model "$top/tests/data/model/kjv.kvm" --prompt "And God said," --steps 99999 2>&1 >/dev/null) || status=$?
[ "$status" = 3 ] && [[ $said == "kvengine: the model's context of "*" tokens is full after "*" of 99999 steps" ]] || {
	echo "a full context: status $status, says: $said"
	exit 1
}
echo "who mistypes an option is told the nearest, and who mistypes a value what would do"
