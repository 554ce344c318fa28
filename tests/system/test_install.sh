#!/usr/bin/env bash
# kvpool-test: parallel static
# What is installed works from where it is, a program finds it by pkg-config, and uninstall leaves nothing.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${BUILD:-$top/build}" && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
put() { make -s -C "$top" "$1" BUILD="$build" DESTDIR="$2" PREFIX="$3" >"$dir/log" 2>&1 || { tail -5 "$dir/log"; exit 1; }; }

put install "$dir" /opt/kvp
at=$dir/opt/kvp
for unit in kvpoold.service kvpoold.socket kvpoold-admin.socket; do test -s "$at/lib/systemd/system/$unit"; done
grep -q '^ExecStart=/opt/kvp/sbin/kvpoold ' "$at/lib/systemd/system/kvpoold.service"
test -s "$at/lib/sysusers.d/kvpool.conf" && test -s "$at/lib/tmpfiles.d/kvpool.conf" && test -s "$dir/etc/kvpool/kvpoold.conf"
for page in man1/kvctl.1 man3/kvpool.3 man7/kvpool-llamacpp.7 man7/kvpool-containers.7 man7/kvpool-policies.7 man8/kvpoold.8; do test -s "$at/share/man/$page"; done
# programs find their libraries beside them, without ldconfig
"$at/sbin/kvpoold" --version >/dev/null
"$at/bin/kvctl" --help >/dev/null
"$at/bin/kvengine" --help >/dev/null
"$at/bin/kvpool-cold" --help >/dev/null
readelf -d "$at/lib/libkvpool.so.0" | grep -q 'SONAME.*\[libkvpool\.so\.0\]'
readelf -d "$at/lib/libkvattn.so.0" | grep -q 'SONAME.*\[libkvattn\.so\.0\]'

export PKG_CONFIG_PATH=$at/lib/pkgconfig PKG_CONFIG_SYSROOT_DIR=$dir
printf '#include <kvattn.h>\n#include <kvpool.h>\nint main(void) { struct kvp_client *c; return kvp_open(NULL, &c) < 0; }\n' >"$dir/a.c"
# shellcheck disable=SC2046  # flags are meant to be split
cc -Wall -Werror "$dir/a.c" $(pkg-config --cflags --libs kvpool kvattn) -Wl,-rpath,"$at/lib" -o "$dir/shared" && "$dir/shared"
# shellcheck disable=SC2046
cc -Wall -Werror "$dir/a.c" $(pkg-config --cflags kvpool) "$at/lib/libkvpool.a" \
	$(PKG_CONFIG_SYSROOT_DIR='' pkg-config --libs-only-l --static kvpool | sed 's/-lkvpool//') -o "$dir/static" && "$dir/static"

echo "# changed" >>"$dir/etc/kvpool/kvpoold.conf"
put uninstall "$dir" /opt/kvp
left=$(find "$dir"/*/ -type f -o -type l)
[ "$left" = "$dir/etc/kvpool/kvpoold.conf" ] || { echo "left behind: $left"; exit 1; }
grep -q "it was changed" "$dir/log"
# not a directory either, and nothing that was there before
for prefix in /opt/kvp /usr/local; do
	rm -rf "$dir/etc" && mkdir -p "$dir$prefix/include/other" && put install "$dir" $prefix && put uninstall "$dir" $prefix
	left=$(cd "$dir" && find . -mindepth 1 -type d | sort | tr '\n' ' ')
	[ "$left" = "$(cd "$dir" && d=.$prefix/include/other; while [ "$d" != . ]; do echo "$d"; d=$(dirname "$d"); done | sort | tr '\n' ' ')" ] ||
		{ echo "left behind: $left"; exit 1; }
	rm -rf "$dir/opt" "$dir/usr"
done
echo "installs, is found, and goes"
