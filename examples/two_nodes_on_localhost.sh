#!/bin/sh
# A job over two nodes, tried out on one machine: each ddprun below would run on a node of its own, with the name of the first node
# in the place of localhost.
#
# usage: two_nodes_on_localhost.sh [PROGRAM [ARGUMENT...]]     default: each worker says who it is
set -eu
cd "$(dirname "$0")/.."
DDPRUN=${DDPRUN:-build/bin/ddprun}
[ $# -gt 0 ] || set -- sh -c 'echo "rank $RANK of $WORLD_SIZE, node $GROUP_RANK of $GROUP_WORLD_SIZE, meets at $MASTER_ADDR:$MASTER_PORT"'

# What only the nodes of this job know: who has it takes part, and nobody else.
DDPRUN_TOKEN=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
export DDPRUN_TOKEN
endpoint=localhost:$((20000 + $$ % 10000))

"$DDPRUN" --nnodes=2 --rdzv-endpoint="$endpoint" --nproc-per-node=2 "$@" &    # "node 2"
"$DDPRUN" --nnodes=2 --rdzv-endpoint="$endpoint" --nproc-per-node=2 "$@"      # "node 1"
wait $!
