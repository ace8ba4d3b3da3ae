# bash completion for ddpctl

_ddpctl() {
  local words="" word=${COMP_WORDS[COMP_CWORD]}
  case $COMP_CWORD:$word in
    *:-*) words="--once --interval --follow --rank --help --version -f -h" ;;
    1:*) words="ps top logs stacks drain stop" ;;
    2:*) [ "${COMP_WORDS[1]}" = drain ] || words=$(ddpctl ps 2>/dev/null | awk 'NR > 1 { print $1 }') ;;
    3:*) [ "${COMP_WORDS[1]}" != drain ] || words=$(ddpctl ps 2>/dev/null | awk 'NR > 1 { print $1 }') ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -F _ddpctl ddpctl
