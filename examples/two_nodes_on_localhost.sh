#!/bin/sh
# A job over two nodes, tried on one machine. In reality each ddprun below runs on its own node, with the first node's name instead of
# localhost.
#
# usage: two_nodes_on_localhost.sh [PROGRAM [ARGUMENT...]]     default: each worker prints its rank
set -eu
cd "$(dirname "$0")/.."
DDPRUN=${DDPRUN:-build/bin/ddprun}
[ $# -gt 0 ] || set -- sh -c 'echo "rank $RANK of $WORLD_SIZE, node $GROUP_RANK of $GROUP_WORLD_SIZE, meets at $MASTER_ADDR:$MASTER_PORT"'

# The secret of this job's nodes: only those who have it can take part.
DDPRUN_TOKEN=$(head -c 16 /dev/urandom | od -An -tx1 | tr -d ' \n')
export DDPRUN_TOKEN
endpoint=localhost:$((20000 + $$ % 10000))

"$DDPRUN" --nnodes=2 --rdzv-endpoint="$endpoint" --nproc-per-node=2 "$@" &    # "node 2"
"$DDPRUN" --nnodes=2 --rdzv-endpoint="$endpoint" --nproc-per-node=2 "$@"      # "node 1"
wait $!
