#!/usr/bin/env bash
# --check-config rejects every configuration that a start rejects, with exit code 1 and an error that names the key.
#   check_config_test.sh BIN_DIR
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
failed=0

# expect_refused PROGRAM TEXT ARGUMENT...
expect_refused() {
  local program=$1 text=$2 out rc=0
  shift 2
  out=$("$bin/holdfast-$program" "${base[$program]}" "$@" --check-config 2>&1) || rc=$?
  if [[ $rc != 1 || $out != *"$text"* ]]; then
    echo "holdfast-$program $*: exit code $rc, expected 1 and '$text': $out" >&2
    failed=1
  fi
}
bin=$1
declare -A base=([agent]=--set=node=n0 [coordinator]=--set=cluster=c [fault]=--set=node=n0)

printf 'short' >"$dir/short"
head -c 32 /dev/urandom | base64 >"$dir/open"
head -c 32 /dev/urandom | base64 >"$dir/secret"
chmod 600 "$dir/short" "$dir/secret"
chmod 644 "$dir/open"
printf 'no pem' >"$dir/pem"
tls() { printf -- '--set=tls.ca=%s\n--set=tls.cert=%s\n--set=tls.key=%s\n' "$1" "$1" "$1"; }
mapfile -t absent < <(tls "$dir/absent")
mapfile -t no_pem < <(tls "$dir/pem")

expect_refused agent "arena.bytes" --set=arena.bytes=0
expect_refused agent "at least one" --set='data_dirs=[]'
expect_refused agent "twice" --set='data_dirs=["/d", "/d"]'
expect_refused agent "twice" --set='data_dirs=["/d", "/x/../d/"]'
expect_refused agent "absolute" --set='data_dirs=["d"]'
expect_refused agent "absolute" --set=run_dir=run
expect_refused agent "node" --set=node=../x
expect_refused agent "node" --set=node=
expect_refused agent "cluster" --set=cluster=a/b
expect_refused agent "name=value" --set='labels=["rack"]'
expect_refused agent "no port" --set=coordinator=localhost
expect_refused agent "no port" --set=coordinator=localhost:0
expect_refused agent "port" --set=coordinator=localhost:99999
expect_refused agent "log_level" --set=log_level=verbose
expect_refused agent "metrics.token_file" --set=metrics.listen=0.0.0.0:9464
expect_refused agent "chmod o=" "--set=metrics.token_file=$dir/open" --set=metrics.listen=127.0.0.1:9464
expect_refused agent ".prom" --set=metrics.textfile=/tmp/metrics
expect_refused agent "tls" --set=data_listen=0.0.0.0:7001
expect_refused agent "tls" --set=coordinator=10.1.2.3:7070
expect_refused agent "secret" --set=peers.listen=0.0.0.0:7002
expect_refused agent "no TLS is configured" --set=peers.listen=0.0.0.0:7002 "--set=peers.secret_file=$dir/secret"
expect_refused agent "no TLS is configured" --set=peers.advertise=10.0.0.1:7002 "--set=peers.secret_file=$dir/secret"
expect_refused agent "over TLS only" --set=peers.plain_text=true "--set=peers.secret_file=$dir/secret"
expect_refused agent "peers.secret_file" "--set=peers.secret_file=$dir/absent"
expect_refused agent "chmod o=" "--set=peers.secret_file=$dir/open"
expect_refused agent "bytes" "--set=peers.secret_file=$dir/short"
expect_refused agent "all three" "--set=tls.ca=$dir/pem"
expect_refused agent "cannot read" "${absent[@]}"
expect_refused agent "PEM" "${no_pem[@]}"
expect_refused agent "directory" --config "$dir"
expect_refused agent "cannot read" --config "$dir/absent.toml"

# Loopback is no boundary between users.
expect_refused agent "insecure_loopback" --set=coordinator=127.0.0.1:7070
expect_refused agent "insecure_loopback" --set=data_listen=127.0.0.1:7001
expect_refused agent "insecure_loopback" --set=peers.listen=127.0.0.1:7002
expect_refused coordinator "insecure_loopback" --set=listen=127.0.0.1:7070
expect_refused fault "insecure_loopback" --set=listen=127.0.0.1:7079

expect_refused coordinator "cluster" --set=cluster=
expect_refused coordinator "address" --set=listen=::::
expect_refused coordinator "port" --set=listen=127.0.0.1:99999
expect_refused coordinator "tls" --set=listen=0.0.0.0:7070
expect_refused coordinator "tls" --set=store=etcd://10.0.0.1:2379
expect_refused coordinator "absolute" --set=data_dir=data
expect_refused coordinator "log_level" --set=log_level=verbose
expect_refused coordinator "metrics.token_file" --set=metrics.listen=0.0.0.0:9465
expect_refused coordinator "peers.group_nodes" --set=peers.parity=4 --set=peers.group_nodes=3
expect_refused coordinator "peers.group_nodes" --set=peers.parity=2 --set=peers.group_nodes=2
expect_refused coordinator "domain_label" --set=peers.domain_label=a/b
expect_refused coordinator "cannot read" "${absent[@]}"
expect_refused coordinator "PEM" "${no_pem[@]}"
expect_refused coordinator "directory" --config "$dir"

expect_refused fault "cluster" --set=cluster=
expect_refused fault "node" --set=node=../x
expect_refused fault "tls" --set=listen=0.0.0.0:7079
expect_refused fault "coordinator" --set=coordinator=::::
expect_refused fault "run_dir" --set=run_dir=drills
expect_refused fault "agent_run_dir" --set=agent_run_dir=run
expect_refused fault "data_dirs" --set='data_dirs=["d"]'
expect_refused fault "log_level" --set=log_level=loud
expect_refused fault "cannot read" "${absent[@]}"
# Drills are no part of the servers.
expect_refused agent "unknown" --set=drills.enabled=true
expect_refused coordinator "unknown" --set=drills.enabled=true

# A start rejects the same configuration with the same error, and changes nothing.
rc=0
out=$("$bin/holdfast-coordinator" --set=peers.parity=4 --set=peers.group_nodes=3 \
  --set=listen="unix:$dir/c.sock" --set=data_dir="$dir/data" 2>&1) || rc=$?
[[ $rc == 1 && $out == *"peers.group_nodes"* && ! -e $dir/data ]] || {
  echo "the coordinator started with parity 4 in groups of 3: exit code $rc: $out" >&2
  failed=1
}

rc=0
out=$("$bin/holdfast-agent" --set=node=n0 --set=run_dir="$dir/run" --set=data_dirs="[\"$dir/disk\"]" \
  --set=peers.listen=0.0.0.0:7002 "--set=peers.secret_file=$dir/secret" 2>&1) || rc=$?
[[ $rc == 1 && $out == *"no TLS is configured"* && ! -e $dir/run && ! -e $dir/disk ]] || {
  echo "the agent started without TLS at an address that other machines reach: exit code $rc: $out" >&2
  failed=1
}

"$bin/holdfast-agent" --set=node=n0 --check-config >/dev/null
# The shipped example of an earlier version has the key, which was off.
"$bin/holdfast-agent" --set=node=n0 --set=peers.plain_text=false --check-config >/dev/null
"$bin/holdfast-coordinator" --check-config >/dev/null
exit "$failed"
