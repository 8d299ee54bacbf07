"""
Reads a cluster through `kubectl`, which supports every way to log in. The one pod it sends is a dry run.

The console has no client of its own: only the pod-watcher calls the API server, and the command stays light.
"""

import asyncio
import contextlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

WITHIN_S = 30.0
"""One call. 5,000 nodes are some 50 MB, which kubectl fetches 500 at a time."""
AT_ONCE = 4
_SAID_MAX = 400
"""Characters shown of kubectl's error."""


class KubectlError(Exception):
    """kubectl is missing, or failed. Its own message, in one line."""


class Kubectl:
    """One cluster. `kubeconfig` None: kubectl's own default, also inside a pod."""

    def __init__(self, kubeconfig: Path | None) -> None:
        """Raises KubectlError without kubectl or kubeconfig."""
        if kubeconfig is not None and not os.path.isfile(kubeconfig):  # noqa: PTH113 - `is_file` raises where it may not look
            raise KubectlError(f"there is no kubeconfig at {kubeconfig}")
        found = shutil.which("kubectl")
        if found is None:
            raise KubectlError("there is no kubectl on PATH; the cluster is looked at through it")
        self._command = (found, *(("--kubeconfig", str(kubeconfig)) if kubeconfig is not None else ()))
        self._free = asyncio.Semaphore(AT_ONCE)

    async def where(self) -> str:
        """The API server's address, or that it is this cluster's own."""
        try:
            view = await self._json("config", "view", "--minify", "--output", "json")
        except KubectlError:  # in a pod there is no context, and kubectl finds its cluster; the check reports errors
            view = {}
        clusters = view.get("clusters") or [{}]
        return str((clusters[0].get("cluster") or {}).get("server") or "this cluster")

    async def listed(self, *what: str) -> Sequence[Mapping[str, Any]]:
        """The objects of a kind: `nodes`, `pods --namespace x`. Raises KubectlError."""
        return list((await self._json("get", *what, "--output", "json")).get("items") or ())

    async def tried(self, pod: Mapping[str, Any]) -> Mapping[str, Any]:
        """The API server's result for a pod; nothing is stored. Raises KubectlError with the server's message."""
        command = ("create", "--dry-run=server", "--validate=false", "--output", "json", "--filename", "-")
        return await self._json(*command, given=json.dumps(pod).encode())

    async def _json(self, *words: str, given: bytes = b"") -> dict[str, Any]:
        async with self._free:
            code, out, err = await self._run(words, given)
        if code != 0:
            text = " ".join(err.decode("utf-8", "replace").split())
            raise KubectlError(text[:_SAID_MAX] or f"kubectl ended with {code}")
        try:
            document: dict[str, Any] = json.loads(out)
        except ValueError as error:
            raise KubectlError(f"kubectl {words[0]} printed no JSON: {error}") from error
        return document

    async def _run(self, words: Sequence[str], given: bytes) -> tuple[int | None, bytes, bytes]:
        try:
            process = await asyncio.create_subprocess_exec(
                *self._command,
                f"--request-timeout={WITHIN_S:g}s",
                *words,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=os.environ,
            )
        except OSError as error:
            raise KubectlError(f"{self._command[0]} cannot be run: {error.strerror}") from error
        try:
            async with asyncio.timeout(WITHIN_S * 2):  # a listing is several requests
                out, err = await process.communicate(given)
        except TimeoutError:
            raise KubectlError(f"kubectl {' '.join(words[:2])} did not end within {WITHIN_S * 2:g} s") from None
        finally:
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    process.kill()
                await process.wait()
        return process.returncode, out, err
