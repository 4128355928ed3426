#!/bin/sh
# plugins.sh: tessera plugins: words and exit codes, the list, and an install with a pip of ours that brings
# a small wheel, fails or stalls: what is interrupted or refused leaves nothing behind.
. "$(dirname "$0")/../cli_help.sh"
export HOME="$work/home" TESSERA_PLUGIN_PATH="$work/plugins" FAKE="$work/fake"
unset XDG_DATA_HOME VIRTUAL_ENV
mkdir "$HOME" "$FAKE" "$work/bin"
left() { find "$work/plugins" -mindepth 1 ! -name .lock 2>/dev/null | sort | sed "s|$work/plugins/||" | tr '\n' ' '; }

# ---- words ---------------------------------------------------------------------------------------
expect 2 plugins
says err 'expected list or install'
expect 2 plugins lits
says err 'unknown action lits; did you mean list?'
expect 2 plugins list more
expect 2 plugins list --again
expect 2 plugins install
says err 'expected cpu, tpu or cuda'
expect 2 plugins install cud
says err 'did you mean cuda?'
expect 2 plugins install cpu tpu
expect 2 plugins install cpu --json
expect 2 plugins install cpu --agian
says err 'did you mean --again?'
expect 0 plugins --help
says out 'tessera plugins install cpu'
expect 0 plugins install --help

# ---- the list ------------------------------------------------------------------------------------
expect 0 plugins list
says out 'tessera plugins install cpu'
expect 0 plugins list --json
[ "$(tr -d '\n' <"$out")" = '{"plugins": []}' ] || { fail 'an empty list is not an empty array'; show; }
mkdir -p "$work/plugins/odd" "$work/plugins/cpu" "$work/plugins/bad"
echo 'no library' >"$work/plugins/odd/libpjrt_cpu.so"
echo '{"name": "cpu"}' >"$work/plugins/bad/plugin.json"
cp "$TESSERA" "$work/plugins/cpu/libpjrt_cpu.so" # ELF, and no plugin
expect 0 plugins list
says out '"package" is missing; expected a text;'
says_like out '^– .*not usable.*plugins/bad/plugin.json$'
says_like out '^cpu  .*not usable.*plugins/cpu/libpjrt_cpu.so$'
says_like out '^– .*not usable.*plugins/odd/libpjrt_cpu.so'
expect 0 plugins list --json
says_like out '^."name": null, "problem": "[^"]+odd/libpjrt_cpu.so'
[ "$(grep -c '"usable": false' "$out")" = 3 ] || { fail 'three plugins are unusable'; show; }
rm -r "$work/plugins"

# ---- a wheel and a pip ---------------------------------------------------------------------------
# bytes N K: N as K little-endian bytes.
bytes() {
    n=$1 k=0
    while [ $k -lt "$2" ]; do
        printf "\\$(printf %03o $((n % 256)))"
        n=$((n / 256)) k=$((k + 1))
    done
}
# zip_of FILE NAME: a zip file of one member; gzip gives the deflated data and the checksum.
zip_of() {
    gzip -nc "$1" >"$work/gz"
    packed=$(($(wc -c <"$work/gz") - 18)) size=$(($(wc -c <"$1")))
    fields() { bytes 20 2; bytes 0 2; bytes 8 2; bytes 0 4; tail -c 8 "$work/gz" | head -c 4
        bytes $packed 4; bytes $size 4; bytes ${#name} 2; bytes 0 2; }
    name=$2
    printf 'PK\003\004'; fields; printf %s "$name"
    tail -c +11 "$work/gz" | head -c $packed
    printf 'PK\001\002'; bytes 20 2; fields; bytes 0 8; bytes 0 4; bytes 0 2; printf %s "$name"
    printf 'PK\005\006'; bytes 0 4; bytes 1 2; bytes 1 2; bytes $((46 + ${#name})) 4
    bytes $((30 + ${#name} + packed)) 4; bytes 0 2
}
{ printf '\177ELF'; head -c 30000000 /dev/zero; } >"$work/library"
zip_of "$work/library" package/pjrt_c_api_cpu_plugin.so >"$FAKE/wheel"
cat >"$work/bin/python3" <<'END'
#!/bin/sh
echo called >>"$FAKE/calls"
while [ "$1" != -d ]; do shift; done
if [ -e "$FAKE/stall" ]; then echo half >"$2/half"; sleep 600 & echo $! >"$FAKE/pid"; wait; fi
if [ -e "$FAKE/says" ]; then cat "$FAKE/says"; exit 1; fi
exec cp "$FAKE/wheel" "$2/x-1-py3-none-any.whl"
END
chmod +x "$work/bin/python3"
PATH=$work/bin:$PATH

expect 2 plugins install tpu
says err '--accept-license'
says err 'cloud.google.com/terms'
[ ! -e "$FAKE/calls" ] && [ ! -e "$work/plugins" ] || fail 'a refused licence downloaded or made something'

echo 'ERROR: Temporary failure in name resolution' >"$FAKE/says"
expect 4 plugins install cpu
says err 'the package index cannot be reached'
[ -z "$(left)" ] || fail "a failed download left $(left)"
sh -c 'trap "" CHLD; exec "$@"' sh "$TESSERA" plugins install cpu >"$out" 2>"$err" </dev/null
code_is 4 $? 'an install whose parent ignores SIGCHLD' && says err 'the package index cannot be reached'
rm "$FAKE/says"

whole='cpu cpu/pjrt_c_api_cpu_plugin.so cpu/plugin.json '
expect 0 plugins install cpu
says out 'installed lammps-jax-pjrt-cpu 0.11.2'
says out 'licence: Apache-2.0'
[ "$(left)" = "$whole" ] || fail "installed: $(left)"
cmp -s "$work/library" "$work/plugins/cpu/pjrt_c_api_cpu_plugin.so" || fail 'another library came out'
calls=$(wc -l <"$FAKE/calls")
expect 0 plugins install cpu --quiet
[ -s "$out" ] && fail '--quiet prints'
[ "$(wc -l <"$FAKE/calls")" = "$calls" ] || fail 'the same version was downloaded again'
printf x | dd of="$work/plugins/cpu/pjrt_c_api_cpu_plugin.so" bs=1 seek=5000 conv=notrunc 2>/dev/null
expect 0 plugins list
says out 'damaged' # a word: lines break where the path says
for command in "train base.yml $tiny run_name=no engine=xla plugin=cpu" "compile base.yml $tiny compile_topology=cpu:1"; do
    expect 4 $command
    says err 'the plugin is not loaded (`tessera plugins install cpu --again` puts it right)'
    says err 'the library is damaged or was replaced'
done
expect 2 plugins install cpu --folder ''
expect 0 plugins install cpu --folder "$work/other"
says out "add $work/other"
[ -e "$work/other/cpu/plugin.json" ] || fail '--folder was not used'

# ---- interrupted ---------------------------------------------------------------------------------
# interrupted SIGNAL CODE: while pip is at work.
interrupted() {
    touch "$FAKE/stall"
    rm -f "$FAKE/pid"
    "$TESSERA" plugins install cpu --again >"$out" 2>"$err" </dev/null &
    child=$!
    wait_for 20 test -s "$FAKE/pid" || fail 'pip was not started'
    kill -s "$1" $child
    wait $child 2>/dev/null
    code_is "$2" $? "an install, SIG$1"
    rm "$FAKE/stall"
    pip=$(cat "$FAKE/pid")
    wait_for 5 sh -c "! kill -0 $pip" 2>/dev/null || fail "pip outlived SIG$1"
}
rm -r "$work/plugins"
interrupted TERM 143
[ -z "$(left)" ] || fail "SIGTERM left $(left)"
interrupted HUP 129
[ -z "$(left)" ] || fail "SIGHUP left $(left)"
interrupted KILL 137
expect 0 plugins install cpu
says out 'removing what an interrupted install left'
[ "$(left)" = "$whole" ] || fail "after SIGKILL: $(left)"
interrupted TERM 143
[ "$(left)" = "$whole" ] || fail "the plugin of before is not whole: $(left)"
expect 0 plugins install cpu
says out 'is already there'
finish
