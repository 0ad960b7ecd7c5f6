package sandbox

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/egressd/egressd/policy"
)

// Programs finds the program behind a socket of a jail: the kernel says which
// inode the socket has, and /proc who holds it. What it finds is for the record
// and for policies, never a proof: a program can hand its sockets to others, and be
// gone before it is looked for. Then nothing is found.
//
// An answer takes a few milliseconds of work at most, whatever the jail's programs
// do, and never longer than 20 ms, on a machine that has other things to do. The
// methods are safe for concurrent use; those of a nil *Programs find nothing.
type Programs struct {
	diag     *diagnosis
	root     int    // the first process in the jail
	network  string // the jail's network namespace, as /proc names it
	patience time.Duration
	readers  chan struct{} // one for each read of arguments that is under way

	mu    sync.Mutex // guards what follows
	held  map[uint32]holding
	known []int // pids that were found in the jail, the last ones first
}

// A holding is where a socket was seen.
type holding struct {
	pid  int
	name string // of the descriptor
}

const (
	programPatience = 20 * time.Millisecond // most often it takes some hundred microseconds
	argumentReaders = 4
	heldMost        = 16 << 10 // sockets remembered
	knownMost       = 64       // processes tried before all others
	threadsMost     = 64       // of a process, whose children are looked at
	childrenBytes   = 4096
	processesMost   = 2048 // looked at for one answer
	descriptorsMost = 4096 // looked at for one answer
)

// An effort is what may still be done for one answer.
type effort struct {
	until                  time.Time
	processes, descriptors int
}

func (e *effort) over() bool {
	return e.processes <= 0 || e.descriptors <= 0 || time.Now().After(e.until)
}

// ErrNotSeen is for a network whose processes are not this user's to look at.
var ErrNotSeen = errors.New("the processes cannot be looked at")

// NewPrograms returns the programs of the jail whose network pid is in. diag is a
// socket in there.
func NewPrograms(diag int, pid int) (*Programs, error) {
	network, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return nil, errors.Join(ErrNotSeen, err)
	}
	return &Programs{
		diag:     &diagnosis{socket: os.NewFile(uintptr(diag), "sock_diag")},
		root:     pid,
		network:  network,
		patience: programPatience,
		readers:  make(chan struct{}, argumentReaders),
		held:     map[uint32]holding{},
	}, nil
}

// Close has nothing found from now on.
func (p *Programs) Close() error {
	if p == nil {
		return nil
	}
	return p.diag.close()
}

// Connected returns the program that has a TCP connection from one address to
// another, or nil.
func (p *Programs) Connected(from, to netip.AddrPort) *policy.Process {
	if p == nil {
		return nil
	}
	return p.behind(p.diag.connected(from, to))
}

// Sent returns the program that has a socket for datagrams on an address, or nil:
// also where several have one.
func (p *Programs) Sent(from netip.AddrPort) *policy.Process {
	if p == nil {
		return nil
	}
	return p.behind(p.diag.bound(from))
}

// behind returns the program that holds the socket with an inode. 0 is none.
func (p *Programs) behind(inode uint32) *policy.Process {
	if inode == 0 {
		return nil
	}
	left := &effort{time.Now().Add(p.patience), processesMost, descriptorsMost}
	pid, dir := p.holder(inode, left)
	if pid == 0 {
		return nil
	}
	defer unix.Close(dir)
	found := &policy.Process{PID: pid}
	if exe, err := linkAt(dir, "exe"); err == nil {
		found.Exe = exe[:min(len(exe), exeMost)]
	}
	found.Argv = p.arguments(dir, left.until)
	return found
}

// holder returns the pid that holds inode, and its folder in /proc, which the
// caller closes: through it another process that gets the number is never seen.
func (p *Programs) holder(inode uint32, left *effort) (pid, dir int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if h, ok := p.held[inode]; ok {
		if dir := p.enter(h.pid); dir >= 0 {
			if link, err := linkAt(dir, "fd/"+h.name); err == nil && link == socketLink(inode) {
				return h.pid, dir
			}
			unix.Close(dir)
		}
		delete(p.held, inode)
	}
	if pid, dir := p.among(slices.Clone(p.known), inode, left); pid != 0 {
		return pid, dir
	}
	if pid, dir := p.among(descendants(p.root, left), inode, left); pid != 0 {
		return pid, dir
	}
	return p.among(processes(), inode, left) // what has lost its parent
}

// among looks for inode in those of pids that are in the jail.
func (p *Programs) among(pids []int, inode uint32, left *effort) (pid, dir int) {
	for _, pid := range pids {
		if left.over() {
			break
		}
		left.processes--
		dir := p.enter(pid)
		if dir < 0 {
			p.forget(pid)
			continue
		}
		p.remember(pid)
		if p.list(pid, dir, left); p.held[inode].pid == pid {
			return pid, dir
		}
		unix.Close(dir)
	}
	return 0, -1
}

// enter opens the folder of a process that is in the jail's network, or returns
// -1.
func (p *Programs) enter(pid int) int {
	dir, err := unix.Open("/proc/"+strconv.Itoa(pid), unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1
	}
	if link, err := linkAt(dir, "ns/net"); err != nil || link != p.network {
		unix.Close(dir)
		return -1
	}
	return dir
}

func (p *Programs) remember(pid int) {
	p.forget(pid)
	p.known = slices.Insert(p.known, 0, pid)
	p.known = p.known[:min(len(p.known), knownMost)]
}

func (p *Programs) forget(pid int) {
	p.known = slices.DeleteFunc(p.known, func(other int) bool { return other == pid })
}

// list notes the sockets that a process holds: more of them are asked for soon,
// mostly.
func (p *Programs) list(pid, dir int, left *effort) {
	fd, err := unix.Openat(dir, "fd", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return
	}
	folder := os.NewFile(uintptr(fd), "fd")
	defer folder.Close()
	for left.descriptors > 0 && !time.Now().After(left.until) {
		names, err := folder.Readdirnames(64)
		if err != nil {
			return
		}
		left.descriptors -= len(names)
		for _, name := range names {
			link, err := linkAt(fd, name)
			if inode := socketInode(link); err == nil && inode != 0 {
				p.hold(inode, holding{pid, name})
			}
		}
	}
}

func (p *Programs) hold(inode uint32, h holding) {
	if len(p.held) >= heldMost {
		clear(p.held)
	}
	p.held[inode] = h
}

// arguments reads the arguments of a process. They are in its own memory, which it
// can have come from a file system of its own, or from nowhere (userfaultfd(2)),
// and so keep whoever reads there waiting for ever: a few goroutines
// may be kept so, and end with the process. While they are, nobody's arguments are
// read.
func (p *Programs) arguments(dir int, until time.Time) []string {
	select {
	case p.readers <- struct{}{}:
	default:
		return nil
	}
	fd, err := unix.Openat(dir, "cmdline", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		<-p.readers
		return nil
	}
	read := make(chan []string, 1)
	go func() {
		defer func() { <-p.readers }()
		defer unix.Close(fd)
		text := make([]byte, argumentBytes)
		n, _ := unix.Read(fd, text)
		read <- plainArguments(text[:max(n, 0)])
	}()
	late := time.NewTimer(time.Until(until))
	defer late.Stop()
	select {
	case argv := <-read:
		return argv
	case <-late.C:
		return nil
	}
}

// descendants returns a process and all that it and its children have started, as
// far as left lets: on a machine with many processes that takes far less than to
// list them all.
func descendants(pid int, left *effort) []int {
	all := []int{pid}
	for next := 0; next < len(all) && len(all) < left.processes && !time.Now().After(left.until); next++ {
		all = append(all, children(all[next])...)
	}
	slices.Reverse(all) // the last ones first
	return all
}

// children returns what the threads of a process have started, as far as fits into
// a few kilobytes.
func children(pid int) (all []int) {
	folder := "/proc/" + strconv.Itoa(pid) + "/task"
	threads, err := namesIn(folder, threadsMost)
	if err != nil {
		return nil
	}
	text := make([]byte, childrenBytes)
	for _, thread := range threads {
		f, err := os.Open(folder + "/" + thread + "/children")
		if err != nil {
			continue
		}
		n, _ := f.Read(text)
		f.Close()
		for _, field := range strings.Fields(string(text[:n])) {
			if pid, err := strconv.Atoi(field); err == nil {
				all = append(all, pid)
			}
		}
	}
	return all
}

func namesIn(path string, most int) ([]string, error) {
	folder, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer folder.Close()
	return folder.Readdirnames(most)
}

// processes returns all pids, the newest first.
func processes() []int {
	names, _ := namesIn("/proc", -1)
	var pids []int
	for _, name := range names {
		if pid, err := strconv.Atoi(name); err == nil {
			pids = append(pids, pid)
		}
	}
	slices.Sort(pids)
	slices.Reverse(pids)
	return pids
}

func linkAt(dir int, name string) (string, error) {
	b := make([]byte, 4096)
	n, err := unix.Readlinkat(dir, filepath.Clean(name), b)
	if err != nil {
		return "", err
	}
	return string(b[:n]), nil
}

func socketLink(inode uint32) string { return "socket:[" + strconv.FormatUint(uint64(inode), 10) + "]" }

// socketInode is the other way round; 0 is for what is no socket.
func socketInode(link string) uint32 {
	number, ok := strings.CutPrefix(strings.TrimSuffix(link, "]"), "socket:[")
	if !ok {
		return 0
	}
	inode, err := strconv.ParseUint(number, 10, 32)
	if err != nil {
		return 0
	}
	return uint32(inode)
}
