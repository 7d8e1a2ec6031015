# shellcheck shell=bash
# A Slurm of two nodes on this machine, on loopback, with everything in $DIR: its daemons are started and ended by process id.
# cred_expire is also how long a job that is queued again waits (120 s unless told otherwise).

write_slurm_conf() {
    local host
    host=$(hostname -s)
    cat >"$SLURM_CONF" <<CONF
ClusterName=test
SlurmctldHost=$host(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket=$DIR/munge.socket,cred_expire=20
SlurmctldPort=17817
SlurmctldPidFile=$DIR/slurmctld.pid
SlurmctldLogFile=$DIR/slurmctld.log
SlurmdPidFile=$DIR/slurmd.%n.pid
SlurmdLogFile=$DIR/slurmd.%n.log
SlurmdSpoolDir=$DIR/spool.%n
StateSaveLocation=$DIR/state
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
MpiDefault=none
SwitchType=switch/none
JobRequeue=1
KillWait=15
ReturnToService=2
PropagateResourceLimits=NONE
SlurmdParameters=config_overrides
NodeName=n1 NodeHostname=$host NodeAddr=127.0.0.1 Port=17821 CPUs=8 RealMemory=16000
NodeName=n2 NodeHostname=$host NodeAddr=127.0.0.1 Port=17822 CPUs=8 RealMemory=16000
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE
CONF
}

start_cluster() {
    write_slurm_conf
    mkdir -p "$DIR/state" "$DIR/spool.n1" "$DIR/spool.n2"
    (umask 077 && head -c 1024 /dev/urandom >"$DIR/munge.key")
    /usr/sbin/munged --force --key-file="$DIR/munge.key" --socket="$DIR/munge.socket" --pid-file="$DIR/munged.pid" \
        --log-file="$DIR/munged.log" --seed-file="$DIR/munged.seed"
    /usr/sbin/slurmctld
    /usr/sbin/slurmd -N n1
    /usr/sbin/slurmd -N n2
    local second
    for ((second = 0; second < 30; second++)); do
        [[ $(sinfo --noheader --Node --states=idle --format=%N | sort -u | wc -l) != 2 ]] || return 0
        sleep 1
    done
    echo "slurm.sh: error: the nodes did not come up" >&2
    tail -n 5 "$DIR"/*.log >&2
    return 1
}

stop_cluster() {
    local file second
    scancel --user="$(id -un)" 2>/dev/null || true
    for ((second = 0; second < 90; second++)); do # jobs end in order, while their nodes still run
        [[ -n $(squeue --noheader 2>/dev/null) ]] || break
        sleep 1
    done
    for file in slurmd.n1 slurmd.n2 slurmctld munged; do
        [[ ! -f $DIR/$file.pid ]] || kill "$(cat "$DIR/$file.pid")" 2>/dev/null || true
    done
    sleep 2
}

job_state() {
    scontrol show job "$1" --oneliner | grep -o 'JobState=[A-Z_]*' | cut -d= -f2
}

# Returns 0 when the job has completed, 1 when it has failed; a job that is queued again is waited for.
wait_for_job() {
    local state
    while true; do
        state=$(job_state "$1")
        case $state in
        COMPLETED) return 0 ;;
        PENDING | RUNNING | COMPLETING | REQUEUED | CONFIGURING) sleep 3 ;;
        *) echo "slurm.sh: job $1 ended as $state" >&2 && return 1 ;;
        esac
    done
}
