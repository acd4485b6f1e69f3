"""The estimate of the roofline: listings of machine code and small shapes, worked out by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.kernels import shapes
from benchmarks.roofline import __main__ as command
from benchmarks.roofline import estimate as model
from benchmarks.roofline import machine_code as code

ROOT = Path(__file__).resolve().parents[2]
# Two nested loops, and before them two branches that meet again, of which the second one is longer
LISTING = """
        /*0000*/                   S2R R0, SR_TID.X ;
        /*0010*/              @!P0 BRA `(.L_x_0) ;
        /*0020*/                   IMAD.MOV.U32 R1, RZ, RZ, R0 ;
        /*0030*/                   BRA `(.L_x_1) ;
.L_x_0:
        /*0040*/                   MUFU.EX2 R2, R0 ;
        /*0050*/                   MUFU.RCP R3, R2 ;
.L_x_3:
        /*0060*/              @P1 LDG.E.128 R8, desc[UR4][R4.64] ;
.L_x_2:
        /*0070*/                   FADD R12, R9, R12 ;
        /*0080*/              @P2 EXIT ;
        /*0090*/               @P0 BRA `(.L_x_2) ;
        /*00a0*/               @P1 BRA `(.L_x_3) ;
.L_x_1:
        /*00b0*/                   STG.E desc[UR4][R4.64], R12 ;
        /*00c0*/                   EXIT ;
.L_x_4:
        /*00d0*/                   BRA `(.L_x_4);
        /*00e0*/                   NOP;
"""


def test_path_takes_the_longer_branch_and_nests_loops():
    path = code.path(LISTING)
    names = [one.code for one in code.flatten(path)]
    assert names == ["S2R", "BRA", "MUFU", "MUFU", "LDG", "FADD", "EXIT", "BRA", "BRA", "STG", "EXIT"]
    assert [(depth, len(list(code.flatten(loop.body)))) for depth, loop in code.loops(path)] == [(1, 5), (2, 3)]
    # 6 outside; 3 outer iterations of 2 and of 4 inner ones of 3
    assert code.executed(path, (3, 4)) == 6 + 3 * (2 + 4 * 3)
    assert code.executed(path, (3, 4), "MUFU") == 2
    assert model.tile_instructions(path) == 3
    assert model.tile_instructions(path[:2]) == 2


def test_registers_that_an_instruction_reads_and_writes():
    def of(text):
        one = next(code.flatten(code.path(f"        /*0000*/                   {text} ;")))
        return sorted(one.reads), sorted(one.writes)

    assert of("@P1 LDG.E.128 R8, desc[UR4][R4.64]") == (["P1", "R4", "UR4"], ["R10", "R11", "R8", "R9"])
    assert of("IMAD.WIDE R2, R5, 0x2, R6") == (["R5", "R6"], ["R2", "R3"])
    assert of("ISETP.GE.AND P4, PT, R2, 0x10, !P1") == (["P1", "R2"], ["P4"])
    assert of("STS.64 [R2+UR9], R36") == (["R2", "R3", "R36", "R37", "UR10", "UR9"], [])
    assert of("HMMA.16816.F32.BF16 R28, R12, R16, RZ") == (["R12", "R16"], ["R28", "R29", "R30", "R31"])


def cycles(*texts: str) -> float:
    lines = [f"        /*0000*/                   {text} ;" for text in texts]
    return code.cycles_alone(code.path("\n".join(lines)), ())


def test_cycles_of_a_warp_alone():
    # 1 cycle each, as long as nothing waits
    assert cycles("FADD R1, R2, R3", "FADD R4, R5, R6", "EXIT") == 3
    # A sum that reads a sum waits for it
    assert cycles("FADD R1, R2, R3", "FADD R4, R1, R6") == 1 + code.ARITHMETIC
    # Two loads wait together; an instruction that reads both follows the second
    loads = ("LDG.E R1, desc[UR4][R4.64]", "LDG.E R2, desc[UR4][R6.64]")
    assert cycles(*loads, "FADD R3, R1, R2") == 2 + code.GLOBAL_MEMORY
    # Copies to shared memory: the code waits for all groups except the last one
    copies = ("LDGSTS.E [R1], desc[UR4][R4.64]", "LDGDEPBAR") * 2
    assert cycles(*copies, "DEPBAR.LE SB0, 0x1") == 1 + code.GLOBAL_MEMORY
    assert cycles(*copies, "DEPBAR.LE SB0, 0x0") == 3 + code.GLOBAL_MEMORY


def test_long_loops_take_as_many_times_longer():
    path = code.path(LISTING)
    times = [code.cycles_alone(path, (trips, 1)) for trips in (100, 200)]
    # Each iteration waits for its load
    assert times[1] - times[0] == pytest.approx(100 * code.GLOBAL_MEMORY, rel=0.05)


def test_estimate_by_hand():
    shape = shapes.Shape(1, 1024, 64, 1, 3)  # 262,144 bytes forward
    alone = [code.Instruction("FADD", frozenset(), frozenset())] * 7 + [
        code.Instruction("MUFU", frozenset(), frozenset())
    ]
    # Two turns of 132 multiprocessors that hold 4 programs of 2 warps
    work = model.Work(alone, (), programs=2 * 4 * 132, block=2, warps=8)
    found = model.estimate("lightconv", "forward", shape, [work], "H200")
    cycle = 1e6 / 1.755e9
    assert found.memory == pytest.approx(262144 / 4.3e6 / 0.92)
    assert found.issue == pytest.approx(2 * 4 * 2 * 8 / 4 * cycle)
    assert found.mufu == pytest.approx(2 * 4 * 2 * 8 / 4 * cycle)
    assert found.turn == pytest.approx(2 * 8 * cycle)
    assert found.us == pytest.approx((found.memory**2 + found.issue**2) ** 0.5)
    assert found.share == pytest.approx(262144 / 4.3e6 / found.us)


def test_iterations_of_loops():
    shape = shapes.Shape(2, 70, 256, 2, 31)  # 2 heads of 128 channels
    values = {"COLUMNS": 64, "TILE": 32, "units": 4}
    nested, single = code.path(LISTING), [code.Loop(())]
    # 2 sentences of 3 tiles, 2 heads in 2 parts: 24 tiles, of which 4 programs take 6 each
    assert model.trips(single, shape, 4, values) == (6,)
    # 4 units a part, 16 in all, 4 a program; 24 / 16 tiles each
    assert model.trips(nested, shape, 4, values) == (4, 1.5)


def test_table_has_every_compiler_and_names_missed_floors(tmp_path):
    def row(instructions, share):
        kernel = {"instructions a tile": instructions, "instructions a program": 900, "registers": 80, "spills": 0}
        kernel |= {"shared": 2048, "warps": 24}
        found = {"op": "lightconv", "direction": "forward", "T": 27, "K": 31, "with": "GLU", "kernels": [kernel]}
        return found | {"H100": {"share": share + 0.1}, "H200": {"share": share}}

    for version, *rest in (("3.6.0", 230, 0.54), ("3.7.1", 220, 0.56)):
        result = {"triton": version, "rows": [row(*rest)]}
        (tmp_path / f"triton-{version}.json").write_text(json.dumps(result), encoding="utf-8")
    lines = command.page(command.read(tmp_path)).splitlines()
    cells = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line.startswith("| lightconv")]
    assert cells[0][:4] == ["lightconv forward, K 31, GLU", "3.6.0", "230", "900"]
    assert cells[0][-2:] == ["64", "54"]
    assert cells[1][1:3] == ["3.7.1", "220"]
    assert [line for line in lines if line.startswith("- ")] == [
        "- Triton 3.6.0, lightconv forward, T 27, K 31 GLU: 54% of 55%"
    ]


RECORD = """
from benchmarks.kernels.shapes import MAIN
from benchmarks.roofline.launches import _specialize, record
found = record("lightconv", "backward", MAIN._replace(glu=True)) + record("dynamicconv", "forward", MAIN)
for launch in found:
    types, constants, hints = _specialize(launch)
    names = launch.kernel.arg_names
    assert launch.programs > 100 and launch.values["WIDTH"] == 64, launch
    assert types["x"] == "*bf16" and types["end"] == "*i64" and types["length"] == "i32", types
    assert (names.index("x_row"),) in hints and (names.index("length"),) not in hints, hints
    assert constants[names.index("ENDS"),] is True
for direction in ("forward", "backward"):
    (launch,) = record("attention", direction, MAIN._replace(length=27))
    assert launch.programs == MAIN.batch * MAIN.heads and launch.values["KEYS"] == 32, launch
    types, constants, hints = _specialize(launch)
    assert types["q"] == "*bf16" and types["lse"] == "*fp32" and types["queries"] == "i32", types
    assert launch.values["q_row"] == 3 * MAIN.channels, launch.values
from triton.runtime.jit import JITFunction
assert JITFunction.run.__name__ == "run" and JITFunction.run.__module__ == "triton.runtime.jit"
"""


@pytest.mark.exhaustive
def test_launches_are_recorded_without_tensors():
    pytest.importorskip("triton")
    done = subprocess.run([sys.executable, "-c", RECORD], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
