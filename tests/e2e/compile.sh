#!/bin/sh
# compile.sh: tessera compile: words and exit codes, the report and its JSON, a step that is loaded where it was made for
# and nowhere else, programs that do not fit, signals. On the fake plugin (tests/fake), then on real ones that are installed.
. "$(dirname "$0")/../cli_help.sh"

fake=$(cd "$(dirname "$TESSERA")" && pwd)/tests/fake/libfake_pjrt.so
[ -e "$fake" ] || { echo "$fake is not built"; exit 1; }
mkdir "$work/tmp"
export FAKE_PJRT_THREADS=1 FAKE_PJRT_PLATFORM=cpu TMPDIR="$work/tmp"
left() { find "$work/tmp" -mindepth 1; }
nothing_left() { [ -z "$(left)" ] || fail "$1 left behind:" "$(left)"; }
compile="compile base.yml $tiny"

# ---- words ---------------------------------------------------------------------------------------
expect 0 compile --help
says out 'compile_topology=v6e:1x1'
expect 2 $compile
says err 'compile_topology is not set'
says err 'compile_topology=v6e:4x4'
expect 2 $compile compile_topology=v6e:3x3
says err 'the nearest are v6e:2x4 (8 chips) and v6e:4x4 (16)'
expect 2 $compile compile_topology=v6e:1x1 compile_topology_num_slices=2
says err 'compile_topology_num_slices=2'
expect 2 $compile compile_topology=v6e:1x1 plugin=cpu
says err 'plugin=cpu does not compile for v6e:1x1'
expect 2 $compile compile_topology=cpu:1 plugin="$fake" frozen_parameters='[model.*,lm_head*]'
says err 'nothing is left to train'
expect 2 $compile compile_topology=cpu:1 stepz=3
says err 'did you mean steps'
expect 2 $compile compile_topology=cpu:1 --jsn
says err 'did you mean --json'
HOME=$work TESSERA_PLUGIN_PATH=$work/none XDG_DATA_HOME=$work/none VIRTUAL_ENV= expect 4 $compile compile_topology=v6e:1x1
says err 'tessera plugins install tpu'
[ ! -e "$work/runs" ] || fail 'compiling made a folder for runs'

# ---- the report ----------------------------------------------------------------------------------
expect 0 $compile compile_topology=cpu:1 plugin="$fake"
says err 'compiling for cpu:1 …'
says out 'memory of a device:'
says_like out '^  arguments +[0-9.]+ GiB +[0-9,]+$'
says_like out '^compiled in [0-9.]+ s'
printf 'base_config: base.yml\ncompile_topology: "cpu:1"\n' >"$work/topology.yml"
expect 0 compile "$work/topology.yml" $tiny plugin="$fake"
says err 'compiling for cpu:1 …' # it stands in the file
expect 0 $compile compile_topology=v6e-16 plugin="$fake" --json --quiet
for key in topology devices per_device argument_bytes output_bytes alias_bytes temp_bytes peak_bytes capacity_bytes \
    code_bytes flops bytes_accessed collectives compile_seconds total_seconds host_peak_bytes; do
    says out "\"$key\": "
done
says out '"topology": "v6e:4x4", "devices": 16'
[ ! -s "$err" ] || fail "a slice that the default mesh fills is worth no warning" "$(show)"
[ "$(wc -l <"$out")" = 1 ] || fail 'the JSON is not one line'
cat >"$work/hlo" <<'HLO'
HloModule m, is_scheduled=true

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %add = f32[] add(%a, %b)
}

ENTRY %main (x: f32[8,16], w: f32[16,4]) -> f32[8,4] {
  %x = f32[8,16]{1,0} parameter(0)
  %w = f32[16,4]{1,0} parameter(1)
  %y = f32[8,4]{1,0} dot(%x, %w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %r = f32[8,4]{1,0} all-reduce(%y), replica_groups={{0,1}}, to_apply=%sum
}
HLO
FAKE_PJRT_DUMP=$work/hlo expect 0 $compile compile_topology=v6e:1x1 plugin="$fake" --json xla_dump_to="$work/dump"
says out '"flops": 1024, "bytes_accessed": 1152, "collectives": [{"kind": "all-reduce", "axis": "", "count": 1, "bytes": 128, '
says out '"kept_as": "all-reduce", "sync_count": 1, "sync_bytes": 128, "async_count": 0, "async_bytes": 0, '
says out '"overlapped_count": 0, "overlapped_bytes": 0}]'
[ -s "$work/dump/train_step.mlir" ] || fail 'the program was not dumped'
grep -qr 'HloModule m' "$work/dump" || fail 'the optimized program was not dumped'
nothing_left 'a report'

# ---- too big -------------------------------------------------------------------------------------
oom='PJRT_Compile=8:Ran out of memory on HBM, the total memory required (66.50G) exceeds available HBM (31.24G).'
FAKE_PJRT_FAIL=$oom expect 1 $compile compile_topology=v6e:1x1 plugin="$fake" compiled_trainstep_file="$work/big"
says out 'does not fit: needs 66.50 GiB, has 31.24 GiB'
says out 'model.embed_tokens.weight'
[ ! -e "$work/big" ] || fail 'a program that does not fit was written'
FAKE_PJRT_FAIL=$oom expect 1 $compile compile_topology=v6e:1x1 plugin="$fake" --json
says_like out '"argument_bytes": null, .*"temp_bytes": null, "peak_bytes": [1-9][0-9]*, "capacity_bytes": [1-9]'
says out '"peak_bytes": 71403831296, "capacity_bytes": 33546042880'
says err 'does not fit: needs 66.50 GiB, has 31.24 GiB'
nothing_left 'a program that does not fit'

# ---- a step from a file --------------------------------------------------------------------------
# loads PLUGIN N: the losses on N devices with and without the file are the same; another program, topology or plugin is
# refused.
loads() {
    xla="engine=xla plugin=$1 dataset_type=synthetic cpu_devices=$2"
    expect 0 $compile compile_topology=cpu:$2 plugin="$1" dataset_type=synthetic compiled_trainstep_file="$work/step"
    says out "written: $work/step"
    rm -rf "$work/runs"
    train plain $xla
    train loaded $xla compiled_trainstep_file="$work/step"
    [ -n "$(losses plain)" ] && [ "$(losses plain)" = "$(losses loaded)" ] ||
        fail 'a loaded step computes something else:' "$(losses plain) / $(losses loaded)"
    expect 2 train base.yml $tiny run_name=other $xla compiled_trainstep_file="$work/step" adam_b2=0.9
    says err 'was compiled for another program'
    sed "2s/\"topology\":\"cpu:$2\"/\"topology\":\"v6e:1x1\"/" "$work/step" >"$work/elsewhere"
    expect 2 train base.yml $tiny run_name=other $xla compiled_trainstep_file="$work/elsewhere"
    says err "another topology: it has v6e:1x1, this run needs cpu:$2"
    sed '2s/"plugin":"/"plugin":"an older /' "$work/step" >"$work/older"
    expect 2 train base.yml $tiny run_name=other $xla compiled_trainstep_file="$work/older"
    says err 'another plugin: it has an older '
    head -c 1000 "$work/step" >"$work/cut"
    expect 3 train base.yml $tiny run_name=other $xla compiled_trainstep_file="$work/cut"
    [ -z "$(steps_of other)" ] || fail 'a step that was refused trained'
    nothing_left 'a file'
}
loads "$fake" 4
loads "$fake" 1
# A place where no file can be is refused before anything is compiled, and stays what it is.
mkfifo "$work/pipe"
for place in none/step pipe tmp; do
    FAKE_PJRT_ABORT=PJRT_Client_Compile expect 2 $compile compile_topology=cpu:1 plugin="$fake" compiled_trainstep_file="$work/$place"
    says err "compiled_trainstep_file=$work/$place"
done
[ -p "$work/pipe" ] || fail 'a pipe was replaced by a file'
# What is no compiled step stays; one that is gives way.
echo 'notes of a year' >"$work/notes"
FAKE_PJRT_ABORT=PJRT_Client_Compile expect 2 $compile compile_topology=cpu:1 plugin="$fake" compiled_trainstep_file="$work/notes"
says err 'notes exists and is no compiled train step'
[ "$(cat "$work/notes")" = 'notes of a year' ] || fail 'a file of the user was overwritten'
expect 0 $compile compile_topology=cpu:1 plugin="$fake" dataset_type=synthetic compiled_trainstep_file="$work/step"

# ---- data that lie where the program will run -----------------------------------------------------
# program FILE: the hash of the program that it holds.
program() { sed -n '2s/.*"program":"\([0-9a-f]*\)".*/\1/p' "$1"; }
slice="compile_topology=v6e:1x1 plugin=$fake dataset_type=jsonl max_target_length=32"
echo '{"text": "a row"}' >"$work/here.jsonl"
for packing in true false; do
    expect 0 $compile $slice packing=$packing dataset_path="$work/here.jsonl" compiled_trainstep_file="$work/here"
    says_not err 'does not exist'
    expect 0 $compile $slice packing=$packing dataset_path=/data/there.jsonl compiled_trainstep_file="$work/there"
    [ $packing = true ] && rows='rows with segments' || rows='rows without segments'
    says err "dataset_path: /data/there.jsonl does not exist here; compiled for dataset_type=jsonl, $rows"
    [ -n "$(program "$work/here")" ] && [ "$(program "$work/here")" = "$(program "$work/there")" ] ||
        fail "packing=$packing: another program without the data"
done
expect 2 train base.yml $tiny run_name=other engine=cpu $slice plugin= dataset_path=/data/there.jsonl
says err 'dataset_path: /data/there.jsonl does not exist'
[ ! -e "$work/runs/other" ] || [ -z "$(steps_of other)" ] || fail 'trained without data'

# ---- stopped (a shell's background jobs ignore SIGINT) ---------------------------------------------
FAKE_PJRT_HANG=PJRT_Compile sh -c 'echo $$ >"$0/pid"; exec "$@"' "$work" "$TESSERA" $compile \
    compile_topology=v6e:1x1 plugin="$fake" compiled_trainstep_file="$work/stopped" >"$out" 2>"$err" </dev/null &
job=$!
wait_for 20 sh -c "ls '$work/tmp' | grep -q tessera-compile" || fail 'compilation did not begin'
sleep 0.5
kill -TERM "$(cat "$work/pid")"
wait $job
code_is 143 $? 'SIGTERM while compiling'
nothing_left 'SIGTERM'
[ ! -e "$work/stopped" ] || fail 'a stopped compilation wrote its file'

# ---- real plugins --------------------------------------------------------------------------------
unset FAKE_PJRT_PLATFORM
# there NAME WORD…: compiles with a plugin that is installed; false where there is none. Any other end is a failure.
there() {
    name=$1
    shift
    "$TESSERA" $compile "$@" >"$out" 2>"$err" </dev/null
    code=$?
    [ $code = 4 ] && grep -q "no $name plugin is installed" "$err" && echo "SKIP  no $name plugin: $*" && return 1
    code_is 0 $code "compile $*"
}
if there cpu compile_topology=cpu:1; then
    says_like out '^work of a device and step: [0-9.e-]+ TFLOP'
    awk '{ gsub(",", "", $NF) } $1 == "temporary" { t = $NF } $1 == "peak" { p = $NF } END { exit !(t > 0 && p > t) }' "$out" ||
        fail 'the peak leaves out what is temporary'
    loads cpu 1
    loads cpu 2
fi
if there tpu compile_topology=v6e:1x1 --json; then
    says out '"capacity_bytes": 33546042880'
    expect 1 $compile compile_topology=v6e:1x1 per_device_batch_size=65536 base_emb_dim=512 max_target_length=512
    says_like out '^does not fit: needs [0-9.]+ GiB, has 31.24 GiB$'
    says_like out 'llama.c'
    # libtpu where XLA's CPU plugin belongs: no waiting for a server that only its cloud has.
    libtpu=$(TMPDIR=$work "$TESSERA" plugins list --json | sed -n 's/.*"name": "tpu".*"path": "\([^"]*\)".*/\1/p')
    if [ ! -e /dev/accel0 ] && [ ! -e /dev/vfio/0 ]; then
        timeout 60 "$TESSERA" $compile compile_topology=cpu:1 plugin="$libtpu" >"$out" 2>"$err"
        code_is 4 $? 'libtpu without a TPU'
        says err 'the plugin cannot open its devices'
    fi
fi
nothing_left 'a real plugin'
finish
