"""Train a small network with DistributedDataParallel; the same file runs under `torchrun` and under Ropewalk.

    torchrun --nproc-per-node 2 examples/train_ddp.py --epochs 4
    ropewalk run --ranks 2 examples/train_ddp.py -- --epochs 4
    ropewalk run --ranks 2 --max-restarts 3 examples/train_ddp.py -- --epochs 4     # try: kill one of the processes
    ropewalk run --ranks 4 --engine slurm --gpus 1 examples/train_ddp.py -- --epochs 4

Nothing in it is Ropewalk's: the addresses and ranks come in environment variables, and `init_process_group` reads them.
When a rank dies, the others are ended and all start again; the script goes on from its checkpoint, as `torchrun`
expects of scripts too.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset


def moons(num_points: int) -> TensorDataset:
    """Two interleaving half circles with noise: the same points in every rank, by the seed."""
    generator = torch.Generator().manual_seed(0)
    angles = torch.rand(num_points, generator=generator) * torch.pi
    labels = torch.arange(num_points) % 2
    side = 1.0 - 2.0 * labels
    points = torch.stack([torch.cos(angles) * side + labels, torch.sin(angles) * side + 0.5 * labels], dim=1)
    return TensorDataset(points + 0.1 * torch.randn(num_points, 2, generator=generator), labels.float())


def save(path: Path, state: dict[str, object]) -> None:
    """Write to another name first: a rank that dies while it writes must not leave half a checkpoint."""
    partial = path.with_suffix(".partial")
    torch.save(state, partial)
    partial.replace(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--checkpoint", type=Path, default=Path("train_ddp.pt"), help="continued from, if it is there")
    arguments = parser.parse_args()

    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    local_rank = int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)

    torch.manual_seed(0)
    network = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, 1)).to(device)
    model = DistributedDataParallel(network, device_ids=[local_rank] if on_gpu else None)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5, momentum=0.9)
    first = 0
    if arguments.checkpoint.exists():
        state = torch.load(arguments.checkpoint, map_location=device, weights_only=True)
        network.load_state_dict(state["network"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]

    dataset = moons(512)
    sampler: DistributedSampler[tuple[torch.Tensor, ...]] = DistributedSampler(dataset)
    loader = DataLoader(dataset, batch_size=32, sampler=sampler)
    for epoch in range(first, arguments.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros((), device=device)
        for points, labels in loader:
            loss = nn.functional.binary_cross_entropy_with_logits(model(points.to(device)).flatten(), labels.to(device))
            optimizer.zero_grad()
            loss.backward()  # the mean of the gradients of all ranks
            optimizer.step()
            total += loss.detach()
        dist.all_reduce(total)
        if dist.get_rank() == 0:
            mean = total.item() / len(loader) / dist.get_world_size()
            times = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            print(f"epoch {epoch + 1}: loss {mean:.4f}, {dist.get_world_size()} ranks, restart {times}", flush=True)
            save(
                arguments.checkpoint,
                {"network": network.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch + 1},
            )
        dist.barrier()  # no rank begins an epoch whose checkpoint is not there
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
