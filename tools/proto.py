"""
Generates `libs/sluice/contracts/pb` from `proto/`. `--check` changes nothing and fails when the two differ.

The generated modules are imported as `sluice.contracts.pb.<file>_pb2`; protoc would import them by the path of their
.proto file, so those lines are rewritten. Typed stubs of the services are written here, for protoc has none.
"""

import argparse
import difflib
import re
import sys
import tempfile
from importlib import resources
from pathlib import Path

from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet, MethodDescriptorProto
from grpc_tools import protoc  # type: ignore[import-untyped]

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "proto"
TARGET = ROOT / "libs/sluice/contracts/pb"
PACKAGE = "sluice.contracts.pb"
INIT = '"""Generated from proto/ by tools/proto.py: never edited. `make proto` writes it again."""\n'

_IMPORT = re.compile(
    r"^(from|import) (?:sluice|csi|pluginregistration|health|dra|drahealth)\.v1(?:alpha1|beta1)?\b", re.MULTILINE
)
"""Ours, and those of others that we serve; the files of all of them have different names."""


def generate() -> dict[str, str]:
    """The generated files, by name. Exits when protoc finds a mistake (it says which)."""
    protos = sorted(str(path.relative_to(SOURCES)) for path in SOURCES.rglob("*.proto"))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        code = protoc.main(
            [
                "protoc",
                f"--proto_path={SOURCES}",
                f"--proto_path={resources.files('grpc_tools') / '_proto'}",
                f"--python_out={out}",
                f"--pyi_out={out}",
                f"--grpc_python_out={out}",
                f"--descriptor_set_out={out / 'descriptors'}",
                *protos,
            ]
        )
        if code != 0:
            sys.exit(code)
        files = {
            path.name: _IMPORT.sub(rf"\1 {PACKAGE}", path.read_text(encoding="utf-8"))
            for path in sorted(out.glob("*/v1*/*.py*"))
        }
        described = FileDescriptorSet.FromString((out / "descriptors").read_bytes())
    homes = {
        f".{file.package}.{message.name}": f"{_module(file)}.{message.name}"
        for file in described.file
        for message in file.message_type
    }
    stubs = {f"{_module(file)}_grpc": _service_stub(file, homes) for file in described.file if file.service}
    empty = [f"{_module(file)}_grpc.py" for file in described.file if not file.service]
    files = {name: text for name, text in files.items() if name not in empty}
    return {"__init__.py": INIT} | files | {f"{name}.pyi": text for name, text in stubs.items()}


def _module(file: FileDescriptorProto) -> str:
    return f"{Path(file.name).stem}_pb2"


def _service_stub(file: FileDescriptorProto, homes: dict[str, str]) -> str:
    """The types of one file's services, for grpc.aio on both sides."""
    methods = [method for service in file.service for method in service.method]
    used = {homes[name].partition(".")[0] for method in methods for name in (method.input_type, method.output_type)}
    lines = ["from collections.abc import AsyncIterator", "from typing import Any", ""]
    lines += [*(f"from {PACKAGE} import {module}" for module in sorted(used)), ""]
    for service in file.service:
        lines += [f"class {service.name}Stub:", "    def __init__(self, channel: Any) -> None: ..."]
        lines += [_signature(method, homes, "timeout: float | None = ...") for method in service.method]
        lines += ["", f"class {service.name}Servicer:"]
        lines += [_signature(method, homes, "context: Any") for method in service.method]
        adder = f"add_{service.name}Servicer_to_server"
        lines += ["", f"def {adder}(servicer: {service.name}Servicer, server: Any) -> None: ..."]
    return "\n".join(lines) + "\n"


def _signature(method: MethodDescriptorProto, homes: dict[str, str], last: str) -> str:
    asked, answered = homes[method.input_type], homes[method.output_type]
    if method.server_streaming:
        return f"    def {method.name}(self, request: {asked}, {last}) -> AsyncIterator[{answered}]: ..."
    return f"    async def {method.name}(self, request: {asked}, {last}) -> {answered}: ..."


def differences(files: dict[str, str]) -> list[str]:
    """What differs between `files` and the folder, as a diff; empty when nothing does."""
    there = {path.name for path in TARGET.glob("*.py*") if path.is_file()}
    found: list[str] = []
    for name in sorted(there | set(files)):
        old = (TARGET / name).read_text(encoding="utf-8") if name in there else ""
        new = files.get(name, "")
        if old != new or name not in there or name not in files:
            found += [f"{name} differs", *difflib.unified_diff(old.splitlines(), new.splitlines(), n=0)]
    return found


def main() -> int:
    """Generate, or only compare. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail when something would")
    check = parser.parse_args().check
    files = generate()
    if check:
        found = differences(files)
        if found:
            print("\n".join([*found[:60], f"{TARGET.relative_to(ROOT)} is not what proto/ says: run `make proto`"]))
        return 1 if found else 0
    TARGET.mkdir(parents=True, exist_ok=True)
    for path in TARGET.glob("*.py*"):
        if path.is_file() and path.name not in files:
            path.unlink()
    for name, text in files.items():
        (TARGET / name).write_text(text, encoding="utf-8")
    print(f"wrote {len(files)} files to {TARGET.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
