# The built-in trainer, and what is copied from here into the users' own pods. From the root of the checkout:
#   docker build -f images/runner.Dockerfile -t memtune-runner .
# For a cluster without GPUs add
#   --build-arg TORCH_BUILD=cpu
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS packages
# Which torch must come out of it, cuda or cpu: the build fails when the index had another one.
ARG TORCH_BUILD=cuda
# An index to take torch from, where those that pip and uv know do not do.
ARG TORCH_INDEX=
RUN python3 -m venv /opt/memtune
ENV PATH=/opt/memtune/bin:$PATH
COPY images/install_torch.sh tools/torch.lock tools/build.lock tools/uv.lock /locks/
RUN sh /locks/install_torch.sh "$TORCH_BUILD" "$TORCH_INDEX"
RUN pip install --no-cache-dir --no-deps --require-hashes -r /locks/build.lock
COPY images/runner.lock /locks/
# DeepSpeed comes as source and looks at the torch that is there: no build isolation, or it would fetch another one.
RUN pip install --no-cache-dir --no-deps --no-build-isolation --require-hashes -r /locks/runner.lock
# On CPUs it compiles shared-memory collectives as it starts, unless the platform has none: no compiler, none of these.
RUN sed -i "s/if sys.platform != 'linux':/if __import__('shutil').which('c++') is None:/" \
        /opt/memtune/lib/python3*/site-packages/deepspeed/ops/op_builder/cpu/comm.py \
    && python3 -c 'import deepspeed.ops; assert deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] is False'

# What the users' pods emulate a GPU with: their images need no compiler.
FROM ${BASE} AS emulated
COPY tools/zig.lock /locks/
RUN python3 -m venv /opt/zig && /opt/zig/bin/pip install --no-cache-dir --require-hashes -r /locks/zig.lock
COPY core/memtune /app/memtune
COPY runner/memtune_runner /app/memtune_runner
RUN cd /app && CC="/opt/zig/bin/python3 -m ziglang cc --target=$(uname -m)-linux-gnu.2.17" \
        python3 -B -m memtune_runner.emulated.build

# Nothing is run from here on, so nothing of the machine that builds can end in the image.
FROM ${BASE}
COPY --from=packages /opt/memtune /opt/memtune
COPY core/memtune /app/memtune
COPY --from=emulated /app/memtune_runner /app/memtune_runner
# Without an entry in /etc/passwd torch wants to know a user's name from the environment.
ENV PATH=/opt/memtune/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/app PYTHONUNBUFFERED=1 HOME=/tmp USER=memtune
USER 65532:65532
ENTRYPOINT ["python3", "-m", "memtune_runner"]
