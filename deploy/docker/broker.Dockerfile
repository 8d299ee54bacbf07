# The broker, where none can be pulled: the nats-server of the wheel that requirements/dev.txt pins, and nothing else.
# It is linked statically, so there is no base. `deploy/docker/build.sh broker` makes its context: the program, and a
# folder `data` that everybody may write, for a named volume takes that from here.
FROM scratch
ARG VERSION
LABEL org.opencontainers.image.title="nats-server" \
      org.opencontainers.image.version="${VERSION}" \
      org.opencontainers.image.licenses="Apache-2.0"
# As one folder: a folder that is named itself would lose who may write to it.
COPY root /
ENV PATH=/
# A program that needs more than itself would fail here, not on somebody's cluster.
RUN ["/nats-server", "--version"]
USER 65532:65532
ENTRYPOINT ["/nats-server"]
