#!/usr/bin/env bash
# Installs DeepSpeed in the environment of the PyTorch benchmark and compiles its operator for asynchronous I/O, which takes
# some minutes: install-deepspeed.sh BUILD_FOLDER
set -euo pipefail
environment=$1/python-environment
export TORCH_EXTENSIONS_DIR=$1/torch-extensions DS_BUILD_OPS=0 DS_ACCELERATOR=cpu PATH=$environment/bin:$PATH
if ! [ -e /usr/include/libaio.h ]; then
  DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends libaio-dev >/dev/null
fi
# DeepSpeed must not replace the installed torch.
pip list --format=freeze | grep '^torch==' | sed 's/+.*//' >"$environment/constraints"
pip install --quiet --no-compile --no-build-isolation -c "$environment/constraints" wheel ninja py-cpuinfo
pip install --quiet --no-compile --no-build-isolation -c "$environment/constraints" deepspeed==0.19.8
# A stale lock of an interrupted build would block the next build forever.
rm -f "$TORCH_EXTENSIONS_DIR"/*/lock
python -c 'from deepspeed.ops.op_builder import AsyncIOBuilder
from deepspeed.ops.op_builder.utils import UtilsBuilder
AsyncIOBuilder().load(verbose=False)
UtilsBuilder().load(verbose=False)'
