# make image
# docker build --build-arg RAY_IMAGE=rayproject/ray:2.60.0-py311-gpu --tag ray-cfnet:0.1.0-gpu .
#
# torch comes from pip's index; an index with its CPU build (--build-arg PIP_EXTRA_INDEX_URL=...) saves gigabytes.
ARG RAY_IMAGE=rayproject/ray:2.60.0-py311-cpu

FROM ${RAY_IMAGE} AS wheel
WORKDIR /build
COPY pyproject.toml README.md ./
COPY conf conf
COPY ray_cfnet ray_cfnet
# hatchling and all that it needs: nothing else is looked up.
RUN pip install --no-cache-dir --no-deps pip==26.3 hatchling==1.33.0 packaging==26.3 pathspec==1.1.1 pluggy==1.7.0 \
        tomlkit==0.15.2 trove-classifiers==2026.9.21.13 \
    && pip wheel --no-cache-dir --no-deps --no-build-isolation --wheel-dir /tmp/dist .

FROM registry.k8s.io/kubectl:v1.36.0 AS kubectl

FROM ${RAY_IMAGE}
# Ray's image lives in Los Angeles.
ENV TZ=Etc/UTC
ARG PIP_EXTRA_INDEX_URL
# For the CronJobs, which create RayJobs.
COPY --from=kubectl /bin/kubectl /usr/local/bin/kubectl
RUN --mount=type=bind,from=wheel,source=/tmp/dist,target=/tmp/dist \
    --mount=type=bind,source=constraints.txt,target=/tmp/constraints.txt \
    pip install --no-cache-dir --constraint /tmp/constraints.txt "$(echo /tmp/dist/*.whl)[delta,report]" \
    && ray-cfnet --help > /dev/null
# Ray's user by number, so that Kubernetes can see that it is not root.
USER 1000
