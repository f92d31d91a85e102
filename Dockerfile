# syntax=docker/dockerfile:1
# Two images, one recipe:
#
#   docker build --target cpu  -t REGISTRY/fintrader:cpu  .
#   docker build --target cuda -t REGISTRY/fintrader:cuda .
#
# Neither holds a compiler, a package manager's cache, or anything of this folder that .dockerignore does not name.
# The CUDA libraries come with torch's own wheels; the host brings the driver and the NVIDIA container toolkit.
# The base by digest (of the index of all architectures), for the same bytes in every build: a tag may be moved. Another
# base goes the same way; `docker pull` prints the digest of a tag:
#   docker build --build-arg PYTHON=3.11.14-slim-bookworm@sha256:... --target cpu -t REGISTRY/fintrader:cpu .
ARG PYTHON=3.11.13-slim-bookworm@sha256:86adf8dbadc3d6e82ee5dd2c74bec2e1c2467cdad47886280501df722372d2e1

# --- everything but the wheels of torch and the packages: shared by both --------------------------------------------
FROM python:${PYTHON} AS build
ENV PIP_NO_CACHE_DIR=1 \
    PIP_DISABLE_PIP_VERSION_CHECK=1 \
    PIP_NO_INPUT=1
RUN python -m venv /opt/fintrader
ENV PATH=/opt/fintrader/bin:$PATH
WORKDIR /src
COPY constraints.txt constraints-image.txt pyproject.toml README.md LICENSE ./
# What the image installs besides the core. Change it with --build-arg EXTRAS=...
ARG EXTRAS=app,gcs,observe,ray,s3

FROM build AS build-cpu
# torch's wheels without CUDA are a tenth of the size; an empty TORCH_INDEX takes the default index.
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install -c constraints.txt ${TORCH_INDEX:+--index-url "$TORCH_INDEX"} torch
# The packages before the source, so that a change of the source builds in seconds.
RUN python -c "import pathlib, tomllib; tool = tomllib.loads(pathlib.Path('pyproject.toml').read_text())['tool']['setuptools']; places = tool['package-dir'] | {'fintrader_app.views': 'app/fintrader_app/views'}; [pathlib.Path(places.get(name, name.replace('.', '/'))).mkdir(parents=True, exist_ok=True) for name in tool['packages']]" \
    && pip install -c constraints.txt -c constraints-image.txt ".[$EXTRAS]" "ray[default]" \
    && pip uninstall -y fintrader
COPY fintrader fintrader
COPY app app
COPY configs configs
RUN pip install --no-deps . \
    && pip check

FROM build AS build-cuda
RUN pip install -c constraints.txt torch
RUN python -c "import pathlib, tomllib; tool = tomllib.loads(pathlib.Path('pyproject.toml').read_text())['tool']['setuptools']; places = tool['package-dir'] | {'fintrader_app.views': 'app/fintrader_app/views'}; [pathlib.Path(places.get(name, name.replace('.', '/'))).mkdir(parents=True, exist_ok=True) for name in tool['packages']]" \
    && pip install -c constraints.txt -c constraints-image.txt ".[$EXTRAS]" "ray[default]" \
    && pip uninstall -y fintrader
COPY fintrader fintrader
COPY app app
COPY configs configs
RUN pip install --no-deps . \
    && pip check

# --- what runs ------------------------------------------------------------------------------------------------------
FROM python:${PYTHON} AS runtime
LABEL org.opencontainers.image.title="fintrader" \
      org.opencontainers.image.description="Train trading agents in a tournament, and believe the result" \
      org.opencontainers.image.licenses="MIT"
# Numeric, so that Kubernetes can see that it is not root. Whatever is written at run time goes below /srv or /tmp: the
# rest may be mounted read-only.
RUN groupadd --gid 10001 fintrader \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /tmp --shell /usr/sbin/nologin fintrader \
    && install -d -o 10001 -g 10001 /srv /srv/runs /srv/data
ENV PATH=/opt/fintrader/bin:$PATH \
    HOME=/tmp \
    OMP_NUM_THREADS=1 \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    NUMBA_CACHE_DIR=/tmp/numba \
    MPLCONFIGDIR=/tmp/matplotlib \
    XDG_CACHE_HOME=/tmp/cache \
    RAY_USAGE_STATS_ENABLED=0
WORKDIR /srv
COPY configs configs
USER 10001:10001
ENTRYPOINT ["fintrader"]
CMD ["--help"]

FROM runtime AS cuda
ENV NVIDIA_VISIBLE_DEVICES=all \
    NVIDIA_DRIVER_CAPABILITIES=compute,utility
COPY --from=build-cuda /opt/fintrader /opt/fintrader

# The last target is what a plain `docker build .` makes.
FROM runtime AS cpu
COPY --from=build-cpu /opt/fintrader /opt/fintrader
