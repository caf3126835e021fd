"""Embedding images: how many a second, beside the same network in plain torch at the batch size that suits it best.

Both have the same weights and threads and take turns, so that what else the machine does meets both; on a CPU the
process's own time is counted. Plain torch is the network as defined, in evaluation mode without gradients, on a tensor
that already lies as it wants it; ours is all that demonstrations go through, from float images to float embeddings.

    python tests/benchmarks/compare_embeddings.py --architecture resnet34 --images 512 --threads 1
"""

import argparse
import json
import statistics
import time

import numpy as np
import torch

from mcnn_ray.encoders.embeddings import embed_images
from mcnn_ray.encoders.encoder import random_encoder
from mcnn_ray.encoders.networks import ARCHITECTURES


def plain_network(encoder, device):
    """Return the same network as torch gives it."""
    network = ARCHITECTURES[encoder.architecture]()
    network.load_state_dict({name: torch.tensor(array) for name, array in encoder.weights.items()}, strict=False)
    return network.eval().to(device)


@torch.inference_mode()
def plain_rate(network, images, batch, device, clock):
    """Return images a second of plain torch."""
    tensor = torch.from_numpy(images).view(-1, 48, 48, 3).permute(0, 3, 1, 2).contiguous().to(device)
    network(tensor[:batch])
    started = clock()
    for start in range(0, len(tensor), batch):
        output = network(tensor[start : start + batch])
    output.cpu()
    return len(tensor) / (clock() - started)


def our_rate(encoder, images, clock):
    """Return images a second of what demonstrations go through."""
    embed_images(images[:64], encoder)
    started = clock()
    embed_images(images, encoder)
    return len(images) / (clock() - started)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--architecture", choices=ARCHITECTURES, default="resnet34")
    parser.add_argument("--images", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--batches", type=lambda text: [int(part) for part in text.split(",")], default=[8, 16, 32, 64, 128, 256]
    )
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    encoder = random_encoder(arguments.architecture)
    encoder.to(arguments.device)
    network = plain_network(encoder, arguments.device)
    images = np.random.default_rng(0).random((arguments.images, encoder.inputs), dtype=np.float32)
    clock = time.process_time if arguments.device == "cpu" else time.perf_counter
    ours, plain = [], {batch: [] for batch in arguments.batches}
    for _ in range(arguments.rounds):
        ours.append(our_rate(encoder, images, clock))
        for batch, rates in plain.items():
            rates.append(plain_rate(network, images, batch, arguments.device, clock))
    medians = {batch: statistics.median(rates) for batch, rates in plain.items()}
    best = max(medians, key=medians.get)
    ratios = [mine / other for mine, other in zip(ours, plain[best], strict=True)]
    print(
        json.dumps(
            {
                "architecture": arguments.architecture,
                "device": arguments.device,
                "threads": arguments.threads,
                "images_per_s": round(statistics.median(ours), 1),
                "plain_images_per_s": {batch: round(rate, 1) for batch, rate in medians.items()},
                "best_batch": best,
                "ratio": round(statistics.median(ratios), 3),
                "ratios": [round(ratio, 3) for ratio in ratios],
            }
        )
    )


if __name__ == "__main__":
    main()
