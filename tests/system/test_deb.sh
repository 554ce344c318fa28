#!/usr/bin/env bash
# kvpool-test: static
# The Debian packages have every file of an installation once, say what they need, and run from where they are unpacked.
set -euo pipefail
top=$(cd "$(dirname "$0")/../.." && pwd)
build=$(cd "${BUILD:-$top/build}" && pwd)
command -v dpkg-shlibdeps >/dev/null || { echo "dpkg-dev is not installed"; exit 77; }
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
mkdir "$dir/control"
libs=/usr/lib/$(dpkg-architecture -qDEB_HOST_MULTIARCH)
make -s -C "$top" install BUILD="$build" DESTDIR="$dir/stage" PREFIX=/usr LIBDIR="$libs" SYSTEMDDIR=/usr/lib >"$dir/log" 2>&1 ||
	{ tail -5 "$dir/log"; exit 1; }
"$top/systemd/debian/build" "$dir/stage" "$dir/out" 1.2.3
for package in kvpool libkvpool0 libkvpool-dev kvpool-dbgsym; do
	deb=$(echo "$dir"/out/${package}_1.2.3_*.deb)
	dpkg-deb -x "$deb" "$dir/root" && dpkg-deb -e "$deb" "$dir/control/$package"
	(cd "$dir/root" && md5sum --quiet -c "$dir/control/$package/md5sums")
	dpkg-deb -c "$deb" | grep -v ' root/root ' && { echo "$package: not all is root's"; exit 1; }
	dpkg-deb -c "$deb" | awk '{print $6}' | grep -v '/$' | sed 's/^\.//' >>"$dir/files"
done
sort "$dir/files" | uniq -d | { ! grep .; } || { echo "in two packages"; exit 1; }
(cd "$dir/stage" && find . ! -type d -printf '/%P\n') | while read -r file; do
	grep -qxF -e "$file" -e "$file.gz" "$dir/files" || { echo "$file is in no package"; exit 1; }
done
grep -q '^Depends: .*libkvpool0 (= 1.2.3).*liburing2' "$dir/control/kvpool/control"
grep -q '^Depends: libkvpool0 (= 1.2.3)' "$dir/control/libkvpool-dev/control"
[ "$(cat "$dir/control/kvpool/conffiles")" = /etc/kvpool/kvpoold.conf ]
for script in "$dir"/control/*/p*; do sh -n "$script"; test -x "$script"; done
LD_LIBRARY_PATH=$dir/root$libs "$dir/root/usr/bin/kvctl" --version >/dev/null
"$dir/root/usr/sbin/kvpoold" --version >/dev/null
id=$(readelf -n "$dir/root/usr/sbin/kvpoold" | sed -n 's/.*Build ID: //p')
test -s "$dir/root/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug"
echo "four packages, $(wc -l <"$dir/files") files"
