"""The run of configs/quickstart.yaml, from Python."""

from fedpilot import Federation

if __name__ == "__main__":
    with Federation("configs/quickstart.yaml") as federation:
        result = federation.run(progress=True)

    print(f"{result.reason}; accuracy {result.accuracy:.4f}, best {result.best:.4f}")
    print(f"curves and models: {result.folder}")
