# bash completion for ddprun

# Flags that take no value; every other one takes the next word.
_ddprun_switches="--standalone --module --no-python --run-path --virtual-local-rank --prefix --no-prefix --timestamp
  --expand --signal-group --dry-run --show-ranks --help --version -m -h"

_ddprun_flags="$_ddprun_switches --nnodes --nproc-per-node --node-rank --master-addr --master-port --local-addr
  --rdzv-backend --rdzv-endpoint --rdzv-id --rdzv-conf --max-restarts --monitor-interval --start-method
  --spares --exclude --preflight --preflight-timeout --join-timeout --last-call --node-timeout --token-file --hosts --hostfile --ssh --ssh-env --ssh-ddprun --event-log-handler --role --log-dir --redirects --tee --local-ranks-filter --duplicate-stdout-filters
  --duplicate-stderr-filters --logs-specs --numa-binding --gpus --signals-to-handle --shutdown-timeout --forward-signals
  --timeout --hang-timeout --restart-backoff --restart-window --restart-on-codes --max-stalled-restarts --recover --standby --preload --log-max-size --result-json
  --events-json --metrics-port --config --log-line-prefix-template --print-completion -r -t"

_ddprun_takes_value() {
  [[ $1 == -?* && $1 != -- && ! $1 =~ ^-[rt]. && " ${_ddprun_switches//$'\n'/ } " != *" ${1//_/-} "* ]]
}

# _ddprun_values FLAG PREFIX: what may follow FLAG.
_ddprun_values() {
  local words="" last
  case ${1//_/-} in
    --nproc-per-node) words="auto cpu gpu 1 2 4 8" ;;
    --nnodes) words="1 2 4 8" ;;
    --node-rank) words="0 1 2 3" ;;
    --master-addr | --rdzv-endpoint | --hosts)
      mapfile -t COMPREPLY < <(compgen -A hostname -W localhost -- "$2")
      return
      ;;
    --rdzv-backend) words="c10d static etcd" ;;
    --start-method) words="spawn fork forkserver" ;;
    --print-completion) words="bash zsh" ;;
    --redirects | -r | --tee | -t) words="0 1 2 3" ;;
    --numa-binding) words="node socket exclusive core-complex" ;;
    --ssh-env)
      mapfile -t COMPREPLY < <(compgen -e -- "$2")
      return
      ;;
    --signals-to-handle | --forward-signals)
      last=${2%"${2##*,}"} # of a list, all but the word that is being typed
      mapfile -t COMPREPLY < <(compgen -P "$last" -A signal -- "${2##*,}" | grep SIG)
      return
      ;;
    --log-dir)
      compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -d -- "$2")
      return
      ;;
    --config | --result-json | --result-json | --token-file | --hostfile | --ssh-ddprun)
      compopt -o filenames
      mapfile -t COMPREPLY < <(compgen -f -- "$2")
      return
      ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$2")
}

# Prints the index of the first word at which PROGRAM may stand: the one being typed if no program was given yet.
_ddprun_program() {
  local i word
  for ((i = 1; i < COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    case $word in
      --) i=$((i + 1)) && break ;;
      -?*)
        if [ "${COMP_WORDS[i + 1]:-}" = = ]; then
          i=$((i + 2))
        elif _ddprun_takes_value "$word"; then
          i=$((i + 1))
        fi
        ;;
      *) break ;;
    esac
  done
  echo "$i"
}

_ddprun() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} flag="" program
  COMPREPLY=()
  program=$(_ddprun_program)
  if [ "$program" -lt "$COMP_CWORD" ]; then # the program's own arguments
    if declare -F _command_offset >/dev/null; then _command_offset "$program"; else compopt -o default; fi
    return
  fi
  # bash takes --flag=value apart: "--flag" "=" "value".
  if [ "$current" = = ]; then
    flag=$before current=""
  elif [ "$before" = = ]; then
    flag=${COMP_WORDS[COMP_CWORD - 2]}
  elif _ddprun_takes_value "$before"; then
    flag=$before
  fi
  if [ -n "$flag" ]; then
    _ddprun_values "$flag" "$current"
  elif [[ $current == -* && $before != -- ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$_ddprun_flags" -- "$current")
  else
    compopt -o filenames
    mapfile -t COMPREPLY < <(compgen -c -- "$current"; compgen -f -- "$current")
  fi
}

complete -F _ddprun ddprun
