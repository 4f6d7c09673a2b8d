# nibble in a container: docker build -t nibble . && docker run -v "$PWD:/work" nibble train my.json
# As a SageMaker training image it needs nothing more: the service runs it with the one word `train`.
FROM debian:12-slim AS build
COPY . /source
WORKDIR /source
RUN bash tests/packages.sh && cmake --preset release -DNIBBLE_BUILD_TESTS=OFF -DNIBBLE_BUILD_BENCHMARKS=OFF \
    && cmake --build build/release && cd build/release && cpack -G DEB -B /package

FROM debian:12-slim
COPY --from=build /package/*.deb /tmp/
RUN apt-get update && apt-get install -y --no-install-recommends /tmp/*.deb && rm -rf /tmp/*.deb /var/lib/apt/lists/*
# `train` alone, with the service's files in place, is SageMaker's call; everything else is nibble's.
RUN printf '%s\n' '#!/bin/sh' \
    'if [ "$#" -eq 1 ] && [ "$1" = train ] && [ -d /opt/ml/input ]; then exec nibble sagemaker-train; fi' \
    'exec nibble "$@"' > /usr/local/bin/nibble-container && chmod +x /usr/local/bin/nibble-container
WORKDIR /work
ENTRYPOINT ["/usr/local/bin/nibble-container"]
CMD ["--help"]
