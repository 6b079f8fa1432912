#!/usr/bin/env bash
# Runs all that needs a GPU, on a bare machine without a network: a driver, and for some parts Python with PyTorch.
#
#   bench/gpu.sh BUNDLE [--out FOLDER] [--seconds N] [--bytes SIZE] [--only PART,PART…] [--device cpu]
#
#   BUNDLE     the file that bench/gpu-bundle.sh made, or the folder unpacked from it
#   --out      folder for results.json, results.md and the output of each part; gpu-results if not given
#   --seconds  all parts together; 1500 if not given. A part that begins late gets the rest
#   --bytes    the state of the part copy; 8GiB if not given
#   --only     runs only these parts
#   --device   cpu: a trial of the Python parts without a GPU, with small models
#
# The parts run in order of value. Each has its own time limit and its own process group; the failure of a part does
# not affect the others. results.json and results.md are complete after each part. The exit code is 0 if no part
# failed, 1 if one failed or ran out of time, 64 for a wrong argument.
set -u
bundle="" out=gpu-results seconds=1500 bytes=8GiB only="" device=cuda
fail() { echo "bench/gpu.sh: $1" >&2; exit 64; }
while [ $# -gt 0 ]; do
  case "$1" in
    --help) sed -n '2,16s/^# \{0,1\}//p' "$0"; exit 0 ;;
    --out | --seconds | --bytes | --only | --device)
      [ $# -gt 1 ] || fail "$1 needs a value; see --help"
      declare "${1#--}=$2"; shift 2 ;;
    -*) fail "unknown argument $1; see --help" ;;
    *) bundle=$1; shift ;;
  esac
done
[ -e "$bundle" ] || fail "name the bundle that bench/gpu-bundle.sh made; '$bundle' does not exist"
[[ $seconds =~ ^[0-9]+$ ]] || fail "--seconds $seconds is not a number"
parts=(machine copy tests step many kill modes torn fault nccl nvml)
for name in ${only//,/ }; do
  [[ " ${parts[*]} " == *" $name "* ]] || fail "there is no part '$name'; the parts are: ${parts[*]}"
done

begin=$SECONDS
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
if [ ! -d "$bundle" ]; then
  tar -xf "$bundle" -C "$work" || fail "$bundle is not a bundle"
  bundle=$work/bundle
fi
bundle=$(cd "$bundle" && pwd)
[ -x "$bundle/bin/holdfast" ] || fail "$bundle is not a bundle: it has no bin/holdfast"
mkdir -p "$out" && out=$(cd "$out" && pwd) || fail "cannot make the folder $out"
# All programs must start. They use the machine's C++ library, unless that is older than theirs.
start_all() {
  local name
  for name in holdfast holdfast-agent holdfast-coordinator; do
    "$bundle/bin/$name" --version || return
  done >"$out/version.txt" 2>&1
}
start_all || { touch "$bundle/use-fallback" && start_all; } ||
  fail "the programs do not start here; is the C library older than that of the build? $(tail -n 1 "$out/version.txt")"
version=$(head -n 1 "$out/version.txt")
export HOLDFAST_BIN_DIR=$bundle/bin HOLDFAST_CUDA_PLUGIN=$bundle/lib/libholdfast-cuda.so

# Python with PyTorch, and the package of the bundle in a separate folder. Nothing is installed on the machine.
python="" why_no_python="there is no python3 with torch"
for candidate in python3 python; do
  if command -v "$candidate" >/dev/null && "$candidate" -c 'import torch' 2>"$work/torch.log"; then
    python=$candidate
    break
  fi
done
if [ -n "$python" ]; then
  why_no_python="no wheel of the bundle fits $("$python" --version 2>&1)"
  for wheel in "$bundle"/python/*.whl; do
    [ -e "$wheel" ] || continue
    "$python" -m pip install --quiet --no-index --no-deps --target "$work/site" "$wheel" 2>"$work/pip.log" ||
      "$python" -m zipfile -e "$wheel" "$work/site" || continue
    PYTHONPATH=$work/site "$python" -c 'import holdfast.torch' 2>"$out/import.txt" && why_no_python="" && break
    rm -rf "$work/site"
  done
fi

json_text() {  # a string as JSON
  local text=${1//\\/\\\\}
  text=${text//\"/\\\"}
  text=${text//$'\t'/ }
  printf '"%s"' "${text//$'\n'/\\n}"
}

records=() tables=() failures=0
# Writes both files from the parts that have ended.
write_results() {
  {
    printf '{"schema": 1, "kind": "gpu", "version": %s, "device": "%s", "seconds": %d, "parts": [' \
      "$(json_text "$version")" "$device" $((SECONDS - begin))
    local comma=""
    for record in ${records[@]+"${records[@]}"}; do printf '%s\n%s' "$comma" "$record"; comma=,; done
    printf '\n]}\n'
  } >"$out/results.json.part" && mv "$out/results.json.part" "$out/results.json"
  {
    printf '# Results on a GPU\n\n%s\n\n| part | outcome | seconds | what |\n|---|---|---:|---|\n' "$version"
    for table in ${tables[@]+"${tables[@]}"}; do printf '%s\n' "${table%%$'\f'*}"; done
    for table in ${tables[@]+"${tables[@]}"}; do printf '%s\n' "${table#*$'\f'}"; done
  } >"$out/results.md.part" && mv "$out/results.md.part" "$out/results.md"
}

# part NAME LIMIT WHAT COMMAND…: the command prints Markdown, and writes JSON into the file $rows.
part() {
  local name=$1 limit=$2 what=$3 outcome=ok code=0 started=$SECONDS
  shift 3
  [ -z "$only" ] || [[ ",$only," == *",$name,"* ]] || return 0
  local left=$((seconds - (SECONDS - begin)))
  [ "$limit" -le "$left" ] || limit=$left
  rows=$out/$name.json
  rm -f "$rows"
  : >"$out/$name.md"
  : >"$out/$name.log"
  if [ "$limit" -le 0 ]; then
    outcome="not run: no time left"
  elif [ "$1" = skip ]; then
    outcome="skipped: $2"
  else
    echo "$name: at most $limit s" >&2
    (cd "$work" && export rows && timeout --kill-after=10 "$limit" "$@" >"$out/$name.md" 2>"$out/$name.log") || code=$?
    case $code in
      0) ;;
      77) outcome="skipped: $(tail -n 1 "$out/$name.log")" ;;
      124 | 137) outcome="out of time" ;;
      *) outcome="failed with exit code $code" ;;
    esac
  fi
  case $outcome in failed* | out*) failures=$((failures + 1)) ;; esac
  local took=$((SECONDS - started)) document=null
  # A document that its part did not finish is left out.
  if [ -s "$rows" ] && [[ $(tail -c 2 "$rows") == *[\]}]* ]]; then document=$(<"$rows"); fi
  records+=("{\"part\": \"$name\", \"outcome\": $(json_text "$outcome"), \"seconds\": $took, \"limit_s\": $limit, \
\"log\": $(json_text "$(tail -n 5 "$out/$name.log" | tr -cd '\n\40-\176')"), \"document\": $document}")
  tables+=("| $name | $outcome | $took | $what |"$'\f'$'\n'"## $name"$'\n\n'"$(<"$out/$name.md")")
  write_results
  echo "$name: $outcome, $took s" >&2
}

describe() {
  printf '| | |\n|---|---|\n| kernel | %s |\n' "$(uname -r 2>/dev/null)"
  local value
  while IFS='|' read -r key command; do
    value=$(eval "$command" 2>/dev/null | head -n 1)
    printf '| %s | %s |\n' "$key" "${value:-none}"
  done <<'END'
GPU|nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader
nvcc|nvcc --version | grep release
PyTorch|python3 -c "import torch; print(torch.__version__, torch.version.cuda, torch.cuda.nccl.version())"
processor|grep -m 1 'model name' /proc/cpuinfo
memory|grep MemTotal /proc/meminfo
END
}
export -f describe
# Without a device the benchmark has no results.
copy_bench() {
  local repeat=(--repeat 1)
  [[ $1 == *GiB ]] || repeat=(--quick)  # a trial
  printf '```\n'
  "$HOLDFAST_BIN_DIR/holdfast-bench" gpu "${repeat[@]}" --bytes "$1" --json "$rows" --dir . || return
  printf '```\n'
  grep -q '"ratio"' "$rows" || { echo "there is no CUDA driver or no device" >&2; return 77; }
}
# The tests of the copier and of the client, on the machine's own driver.
device_tests() {
  local code=0 name result
  printf '| tests | result | passed | skipped |\n|---|---|---:|---:|\n'
  for name in client_cuda_test client_cuda_client_test; do
    result=passed
    "$HOLDFAST_BIN_DIR/$name" >"$name.log" 2>&1 || { result=FAILED; code=1; }
    printf '| %s | %s | %d | %d |\n' "$name" "$result" "$(grep -c '^\[       OK' "$name.log")" \
      "$(grep -c '^\[  SKIPPED \].* ms' "$name.log")"
    cat "$name.log" >&2
  done
  return $code
}
export -f copy_bench device_tests
python_part() {  # NAME LIMIT WHAT
  local limit=$2 left=$((seconds - (SECONDS - begin)))
  [ "$limit" -le "$left" ] || limit=$left
  if [ -n "$why_no_python" ]; then
    part "$1" "$2" "$3" skip "$why_no_python"
  else
    part "$1" "$2" "$3" env PYTHONPATH="$work/site:$bundle/python" "$python" -B "$bundle/python/gpu_parts.py" "$1" \
      --rows "$out/$1.json" --device "$device" --seconds "$limit"
  fi
}

part machine 30 "what the machine has" bash -c describe
part copy 330 "device → sealed slot, restore, stall ÷ one pinned copy; 10,000 tensors and one" \
  bash -c 'copy_bench "$1"' copy "$bytes"
part tests 90 "copier and client: order, capture, failures, several streams" bash -c device_tests
python_part step 300 "a training step with a checkpoint every step ÷ without; first save; other ways of saving"
python_part many 60 "host time of save() with 10,000 tensors"
python_part kill 270 "kill -9 at 20 random times: losses and parameters bit for bit"
python_part modes 180 "streams, unified memory, CUDA graphs, torch.compile: a save while training goes on"
python_part torn 75 "updates in place right after save(), with and without a guard"
python_part fault 70 "an illegal access while a copy runs: an error, and the version before is intact"
python_part nccl 65 "the machine's NCCL loads the profiler plugin; its records compared with NCCL's log"
python_part nvml 30 "the watch for GPU errors (Xids) opens"
[ "$failures" -eq 0 ]
