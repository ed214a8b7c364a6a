# An image in which agents start (engines docker and kubernetes), and launchers that are submitted to a cluster.
#
#   docker build -t ropewalk .
#   ropewalk run train.py --engine docker --option image=ropewalk --workers 8
#
# Your own code needs no place in it: it is sent along with each run. What your code imports from others does, so
# install that on top, in a Dockerfile of your own that begins with `FROM ropewalk`, or name extras of this package:
#
#   docker build -t ropewalk --build-arg EXTRAS=torch .
#
# The Python in it must have the minor version of the Python that you launch with, and this version of ropewalk
# (`ropewalk doctor --engine docker` compares both):
#
#   docker build -t ropewalk --build-arg BASE=python:3.12-slim .
#
# PIP_OPTIONS are for mirrors and for hosts without a network, with the wheels in the base image or in a copied folder:
#
#   docker build -t ropewalk --build-arg BASE=my-base --build-arg PIP_OPTIONS="--no-index --find-links /wheels" .
#
# An engine mounts nothing by itself and opens no port. Processes run as the user `ropewalk` (1000:1000); the option
# `user` of the engine docker and `run_as_user` of the engine kubernetes choose another one.

ARG BASE=python:3.11-slim
FROM ${BASE}

RUN useradd --create-home --uid 1000 --user-group ropewalk

# Only what the package is built from: a change of the tests or of the documentation builds nothing anew.
COPY pyproject.toml README.md LICENSE /build/
COPY src /build/src

ARG EXTRAS=""
ARG PIP_OPTIONS=""
RUN python3 -m pip install --no-cache-dir --disable-pip-version-check --root-user-action=ignore ${PIP_OPTIONS} \
        "/build${EXTRAS:+[$EXTRAS]}" \
    && rm -rf /build

USER ropewalk
WORKDIR /home/ropewalk

# No ENTRYPOINT: engines say themselves what runs.
CMD ["ropewalk", "--help"]
