"""Starts `memoir serve` on a free port for the tests of one script, and stops it.

The scripts beside this are run by ctest (tests/CMakeLists.txt) with the Python of .venv-clients and two environment
variables: MEMOIR_PROGRAM and MEMOIR_TEST_SMOLLM2. They talk to the server with other people's packages, which parse
what it sends. Expected values are what these packages promise, or follow from what was asked.
"""

import os
import signal
import subprocess
import sys
import threading
import unittest

PROGRAM = os.environ.get("MEMOIR_PROGRAM", "build/release/bin/memoir")
MODEL = os.environ.get("MEMOIR_TEST_SMOLLM2", "models/smollm2.gguf")


class Server:
    """A running server; `address` is where. What it logs is shown when a test fails."""

    def __init__(self, *options, models=("-m", MODEL, "--alias", "smollm2")):
        command = [PROGRAM, "serve", *models, "--port", "0", *options]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.log = []
        self._reader = threading.Thread(target=self._read_log)
        self._reader.start()
        self.address = self.process.stdout.readline().strip()
        if not self.address.startswith("http://"):
            self.stop()
            raise RuntimeError("the server did not start:\n" + "".join(self.log))

    def _read_log(self):
        for line in self.process.stderr:
            self.log.append(line)

    def stop(self):
        """SIGTERM, as an operator does it. Returns the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(timeout=60)
        self._reader.join()
        self.process.stdout.close()
        self.process.stderr.close()
        return status


class ServedTest(unittest.TestCase):
    """A server for all tests of the class. options: further ones of `memoir serve`."""

    options = ()
    models = ("-m", MODEL, "--alias", "smollm2")

    @classmethod
    def setUpClass(cls):
        cls.server = Server(*cls.options, models=cls.models)
        cls.address = cls.server.address

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        assert status == 0, f"the server ended with {status}:\n" + "".join(cls.server.log)


def run():
    program = unittest.main(exit=False)
    sys.stdout.flush()
    sys.exit(0 if program.result.wasSuccessful() and program.result.testsRun else 1)
