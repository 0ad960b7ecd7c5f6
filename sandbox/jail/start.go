package jail

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/internal/jailinit"
	"github.com/egressd/egressd/sandbox"
)

// initCapabilities are the capabilities that jail init needs and gives up afterwards.
var initCapabilities = []uintptr{
	unix.CAP_NET_ADMIN, unix.CAP_NET_RAW, unix.CAP_NET_BIND_SERVICE, unix.CAP_SYS_ADMIN, unix.CAP_SYS_CHROOT, unix.CAP_SETPCAP,
	unix.CAP_DAC_OVERRIDE, unix.CAP_FOWNER, unix.CAP_CHOWN,
}

// startDivider starts the first process of a jail, in new namespaces, and returns. A goroutine waits for jail
// init, which the divider starts, and sends the plan to it.
//
// The kernel kills the divider when the thread that started it ends, so that thread stays until TakeDown.
func startDivider(serve func(place, device int) error, plan *jailinit.Plan) (*Jail, error) {
	started, over := make(chan error), make(chan struct{})
	j := &Jail{serve: serve, planned: make(chan struct{}), release: sync.OnceFunc(func() { close(over) })}
	go func() {
		runtime.LockOSThread() // and not unlocked: the thread ends with this goroutine
		divider, said, err := j.start()
		started <- err
		if err != nil {
			return
		}
		plan.Root = j.root
		if j.unplanned = j.findInit(divider, said); j.unplanned == nil {
			_ = j.send(plan) // a jail init that has ended said why, for awaitMade
		}
		close(j.planned)
		if j.pid != divider {
			_, _ = unix.Wait4(divider, nil, 0, nil) // for which the kernel needs milliseconds, so nobody waits for it
		}
		<-over
	}()
	if err := <-started; err != nil {
		return nil, &SetupError{Step: "user namespace", Err: err}
	}
	return j, nil
}

// start starts the divider, and returns its process ID and the pipe that it writes to. The pipe ends with the divider: no other
// process has the end for writing.
func (j *Jail) start() (divider, said int, err error) {
	control, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, -1, os.NewSyscallError("socketpair", err)
	}
	var life, words [2]int
	if err := unix.Pipe2(life[:], unix.O_CLOEXEC); err != nil {
		jailinit.CloseAll(control[:])
		return 0, -1, os.NewSyscallError("pipe2", err)
	}
	if err := unix.Pipe2(words[:], unix.O_CLOEXEC); err != nil {
		jailinit.CloseAll(slices.Concat(control[:], life[:]))
		return 0, -1, os.NewSyscallError("pipe2", err)
	}
	file, err := unix.MemfdCreate("program", unix.MFD_CLOEXEC|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		file, err = unix.MemfdCreate("program", unix.MFD_CLOEXEC)
	}
	if err != nil {
		jailinit.CloseAll(slices.Concat(control[:], life[:], words[:]))
		return 0, -1, os.NewSyscallError("memfd_create", err)
	}
	given := []int{control[1], file, life[0], words[1]}
	defer jailinit.CloseAll([]int{control[1], life[0], words[1]})
	all, mayMap := allUsers()
	if mayMap {
		divider, err = forkDivider(given, all)
		j.root = err == nil
	}
	if !j.root {
		divider, err = forkDivider(given, users{uids: ids(os.Getuid()), gids: ids(os.Getgid())})
	}
	if err != nil {
		jailinit.CloseAll([]int{control[0], file, life[1], words[0]})
		return 0, -1, err
	}
	j.file = file
	j.control, j.rest = os.NewFile(uintptr(control[0]), "jail"), os.NewFile(uintptr(life[1]), "life")
	return divider, words[0], nil
}

// forkDivider executes this program again, with descriptors for its arguments. Descriptors that this process inherited stay in
// place, as for any other child.
func forkDivider(given []int, mapped users) (pid int, err error) {
	argv := []string{os.Args[0], jailinit.Argument, jailinit.Divider}
	for _, fd := range given {
		if _, err := unix.FcntlInt(uintptr(fd), unix.F_SETFD, 0); err != nil {
			return 0, err
		}
		argv = append(argv, strconv.Itoa(fd))
	}
	defer halveSignals()()
	return syscall.ForkExec("/proc/self/exe", argv, &syscall.ProcAttr{
		Env:   append([]string{"GOMAXPROCS=1", "GODEBUG=containermaxprocs=0"}, os.Environ()...), // it does one thing after the other, and need not ask the control group how many it may
		Files: []uintptr{0, 1, 2},
		Sys: &syscall.SysProcAttr{
			Cloneflags:  unix.CLONE_NEWUSER | unix.CLONE_NEWNET | unix.CLONE_NEWNS | unix.CLONE_NEWIPC,
			UidMappings: mapped.uids,
			GidMappings: mapped.gids,
			AmbientCaps: initCapabilities,
			Pdeathsig:   syscall.SIGKILL,

			GidMappingsEnableSetgroups: mapped.setGroups,
		},
	})
}

// halveSignals halves this process's limit of queued signals (RLIMIT_SIGPENDING) until done is called. A user
// namespace that is made meanwhile inherits the halved limit for all its processes together. Without it, the
// program could use up the queue of its user, and every egressd of that user would hang: Go's runtime signals
// its threads when all of them have to make a system call.
func halveSignals() (done func()) {
	var own unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_SIGPENDING, &own) != nil {
		return func() {}
	}
	half := own
	half.Cur /= 2
	_ = unix.Setrlimit(unix.RLIMIT_SIGPENDING, &half) // the kernel lets everybody lower it
	return func() { _ = unix.Setrlimit(unix.RLIMIT_SIGPENDING, &own) }
}

// findInit waits until the divider has started jail init, or has ended, and notes jail init's process ID. The ID 0 means that
// the divider itself becomes jail init.
func (j *Jail) findInit(divider, said int) error {
	words := os.NewFile(uintptr(said), "divider")
	defer words.Close()
	pid, reaper := 0, 0
	_, err := fmt.Fscanf(words, "%d %d\n", &pid, &reaper)
	if err == nil && pid == 0 {
		j.setPID(divider)
		return j.findNetwork()
	}
	_ = syscall.Kill(divider, syscall.SIGKILL) // it has nothing left to do
	switch {
	case err != nil:
		err = errors.New("the process that makes them ended")
	case pid < 0:
		err = os.NewSyscallError("PID namespace", syscall.Errno(-pid))
	default:
		j.apart, j.reaper = true, reaper
		j.setPID(pid)
		return j.findNetwork()
	}
	return &SetupError{Step: "namespaces", Err: err}
}

// findNetwork notes which network jail init is in, while jail init waits for the plan. Later it may have ended.
func (j *Jail) findNetwork() (err error) {
	if j.network, err = sandbox.NetworkOfProcess(j.pid); err != nil {
		return &SetupError{Step: "namespaces", Err: err}
	}
	return nil
}

func (j *Jail) setPID(pid int) {
	j.life.Lock()
	defer j.life.Unlock()
	j.pid = pid
}
