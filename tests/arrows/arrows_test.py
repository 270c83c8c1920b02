#!/usr/bin/env python3
"""The tree keeps to its own rules.    usage: arrows_test.py SOURCE_DIR BIN_DIR"""

import sys
import tempfile
import unittest
from pathlib import Path

import arrows

ROOT = Path(sys.argv[1]).resolve()
BIN_DIR = Path(sys.argv[2]).resolve()


class Tree(unittest.TestCase):
    """This tree."""

    def assert_clean(self, faults):
        if faults:
            self.fail("\n" + "\n".join(faults))

    def setUp(self):
        self.layers = arrows.read_layers((ROOT / "cmake/layers.txt").read_text())

    def test_layers(self):
        self.assertIn("engine/train", self.layers)
        self.assert_clean(arrows.check_layers(self.layers))

    def test_includes(self):
        self.assert_clean(arrows.check_includes(ROOT, self.layers))

    def test_lengths(self):
        self.assert_clean(arrows.check_lengths(ROOT))

    def test_binaries(self):
        self.assert_clean(arrows.check_binaries(BIN_DIR))


class Rules(unittest.TestCase):
    """Each rule finds what it is for, in a small tree made for it."""

    LAYERS = {"common": set(), "engine/arch": {"common"}, "engine/nn": {"common", "engine/arch"},
              "worker/host": {"common", "proto/slipway/v1"}, "proto/slipway/v1": set(),
              "proto/slipway/storage/v1": {"proto/slipway/v1"}}

    def faults(self, files):
        with tempfile.TemporaryDirectory() as directory:
            root = Path(directory)
            base = {"common/a.h": "", "engine/arch/a.h": "", "engine/nn/a.h": "", "proto/slipway/v1/job.proto": "",
                    "tests/support/a.h": ""}
            for path, text in {**base, **files}.items():
                (root / path).parent.mkdir(parents=True, exist_ok=True)
                (root / path).write_text(text)
            lengths = arrows.check_lengths(root, long_files={"common/long.h": ""})
            return arrows.check_includes(root, self.LAYERS) + lengths

    def assert_fault(self, files, text):
        faults = self.faults(files)
        self.assertEqual(1, len(faults), faults)
        self.assertIn(text, faults[0])

    def test_allowed(self):
        self.assertEqual([], self.faults({
            "engine/nn/b.cc": '#include "engine/nn/a.h"\n#include "engine/arch/a.h"\n#include <torch/all.h>\n',
            "engine/arch/b_test.cc": '#include "tests/support/a.h"\n#include "absl/status/status.h"\n',
            "engine/arch/inner/b.cc": '#include "common/a.h"\n',
            "worker/host/b.cc": '#include "slipway/v1/job.pb.h"\n',
            "common/long.h": "\n" * 451}))

    def test_forbidden_arrow(self):
        self.assert_fault({"engine/arch/b.cc": '#include "engine/nn/a.h"\n'}, "engine/arch may not use engine/nn")
        self.assert_fault({"common/b.cc": '  #  include "engine/arch/a.h"\n'}, "common may not use engine/arch")
        self.assert_fault({"common/b.cc": '#include "slipway/v1/job.pb.h"\n'}, "common may not use proto/slipway/v1")

    def test_tests_are_for_tests(self):
        self.assert_fault({"common/b.cc": '#include "tests/support/a.h"\n'}, "only tests may include")

    def test_libraries_of_layers(self):
        self.assert_fault({"engine/arch/b.cc": "#include <ATen/ATen.h>\n"}, "free of torch")
        self.assert_fault({"worker/host/b.cc": "#include <grpcpp/grpcpp.h>\n"}, "free of gRPC")

    def test_missing_and_relative(self):
        self.assert_fault({"common/b.cc": '#include "common/gone.h"\n'}, "there is no common/gone.h")
        self.assert_fault({"common/b.cc": '#include "a.h"\n'}, "by its path from the root")
        self.assert_fault({"worker/host/b.cc": '#include "slipway/v1/gone.pb.h"\n'},
                          "there is no proto/slipway/v1/gone.proto")

    def test_folder_without_a_line(self):
        self.assert_fault({"server/b.cc": ""}, "no line in cmake/layers.txt")

    def test_imports(self):
        self.assert_fault({"proto/slipway/storage/v1/x.proto": "",
                           "proto/slipway/v1/y.proto": 'import "slipway/storage/v1/x.proto";\n'},
                          "proto/slipway/v1 may not use proto/slipway/storage/v1")

    def test_include_cycle(self):
        self.assert_fault({"common/x.h": '#include "common/y.h"\n', "common/y.h": '#include "common/x.h"\n'},
                          "include cycle: common/x.h -> common/y.h -> common/x.h")

    def test_long_file(self):
        self.assert_fault({"common/b.cc": "\n" * 451}, "451 lines")

    def test_table(self):
        self.assertEqual(["cmake/layers.txt: a uses b, which has no line"], arrows.check_layers({"a": {"b"}}))
        self.assertEqual(["cmake/layers.txt: cycle a -> b -> a"], arrows.check_layers({"a": {"b"}, "b": {"a"}}))
        self.assertEqual({"a": {"b", "c"}, "b": set()}, arrows.read_layers("# note\n\na: b c\nb:\n"))

    def test_binaries(self):
        needed = arrows.needed_libraries(" 0x1 (NEEDED)  Shared library: [libtorch_cpu.so]\n"
                                         " 0x1 (NEEDED)  Shared library: [libm.so.6]\n")
        self.assertEqual(["libtorch_cpu.so", "libm.so.6"], needed)
        self.assertEqual(["slipwayd links libtorch_cpu.so; only slipway-worker and tests may"],
                         arrows.torch_links("slipwayd", needed))
        self.assertEqual([], arrows.torch_links("slipway-worker", needed))
        self.assertEqual(1, len(arrows.exported_protobuf("0 T main\n0 W google::protobuf::Message::New() const\n")))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
