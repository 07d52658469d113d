# The operator, without torch. From the root of the checkout:
#   docker build -f images/operator.Dockerfile -t memtune-operator .
# For jobs with `sampler: GP`, which needs torch and scipy, add
#   --build-arg GP=true
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS packages
RUN python3 -m venv /opt/memtune
COPY images/operator.lock /locks/
RUN /opt/memtune/bin/pip install --no-cache-dir --no-compile --no-deps --require-hashes -r /locks/operator.lock
ARG GP=false
# An index to take torch from, where those that pip and uv know do not do.
ARG TORCH_INDEX=
COPY images/install_torch.sh images/operator-gp.lock tools/torch.lock tools/uv.lock /locks/
RUN [ "$GP" != true ] || { sh /locks/install_torch.sh cpu "$TORCH_INDEX" \
    && /opt/memtune/bin/pip install --no-cache-dir --no-compile --no-deps --require-hashes -r /locks/operator-gp.lock; }
# Half of it would never be used: the operator's client of Kubernetes is the asynchronous one, nobody runs NumPy's tests
# or pip in the cluster, and only what is imported here needs compiling, which the read-only image could not do later.
RUN cd /opt/memtune/lib/python3*/site-packages \
    && rm -r kubernetes/client/api \
    && find numpy -type d -name tests -prune -exec rm -r {} + \
    && /opt/memtune/bin/pip uninstall --yes pip setuptools \
    && /opt/memtune/bin/python3 -c "import kopf, optuna, prometheus_client, pydantic; from kubernetes.aio import client, config; from kubernetes.aio.leaderelection import leaderelection; client.ApiClient, client.CoordinationV1Api"
RUN [ "$GP" != true ] || /opt/memtune/bin/python3 -c "import optuna; study = optuna.create_study(sampler=optuna.samplers.GPSampler(n_startup_trials=1)); study.optimize(lambda trial: trial.suggest_float('x', 0, 1), n_trials=3)"

# Nothing is run from here on, so nothing of the machine that builds can end in the image.
FROM ${BASE}
COPY --from=packages /opt/memtune /opt/memtune
COPY core/memtune /app/memtune
COPY operator/memtune_operator /app/memtune_operator
ENV PATH=/opt/memtune/bin:/usr/local/bin:/usr/bin:/bin PYTHONPATH=/app PYTHONUNBUFFERED=1 HOME=/tmp
USER 65532:65532
ENTRYPOINT ["python3", "-m", "memtune_operator"]
