"""One federation over three Ray clusters, which are started for it and ended with it."""

from fedpilot import Federation

if __name__ == "__main__":
    changes = ["federation.rounds=5"]
    with Federation("configs/three_sites.yaml", overrides=changes) as federation:
        result = federation.run(progress=True)

        print(federation["client_7"].explain())

    with Federation("configs/quickstart.yaml", overrides=changes) as federation:
        alone = federation.run()
    print(f"the same model as on one cluster: {result.digest == alone.digest}")
