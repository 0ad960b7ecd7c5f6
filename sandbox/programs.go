//go:build linux

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

// Programs finds the program of a socket in a jail: the kernel names the socket's inode, and /proc names the
// process that holds it. The result serves records and policies and proves nothing, because a program can pass
// its sockets to others, or end before Programs looks.
//
// A lookup takes at most 20 ms, whatever the jail's programs do, and usually less than one. All methods are
// safe for concurrent use. A nil *Programs finds nothing.
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

// A holding is the descriptor at which a socket was seen.
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

// An effort bounds the work for one lookup.
type effort struct {
	until                  time.Time
	processes, descriptors int
}

func (e *effort) over() bool {
	return e.processes <= 0 || e.descriptors <= 0 || time.Now().After(e.until)
}

// ErrNotSeen is for a network whose processes this user may not inspect.
var ErrNotSeen = errors.New("the processes cannot be looked at")

// NewPrograms returns the programs of the network that pid is in. diag is a sock_diag socket of that network.
func NewPrograms(diag int, pid int) (*Programs, error) {
	network, err := NetworkOfProcess(pid)
	if err != nil {
		return nil, err
	}
	return ProgramsOf(diag, pid, network), nil
}

// NetworkOfProcess returns the network that a process is in, as the kernel calls it. A process that has ended is in none: the error is
// then [ErrNotSeen].
func NetworkOfProcess(pid int) (string, error) {
	network, err := os.Readlink("/proc/" + strconv.Itoa(pid) + "/ns/net")
	if err != nil {
		return "", errors.Join(ErrNotSeen, err)
	}
	return network, nil
}

// ProgramsOf is NewPrograms for a process that may have ended since its network was looked at.
func ProgramsOf(diag, pid int, network string) *Programs {
	return &Programs{
		diag:     &diagnosis{socket: os.NewFile(uintptr(diag), "sock_diag")},
		root:     pid,
		network:  network,
		patience: programPatience,
		readers:  make(chan struct{}, argumentReaders),
		held:     map[uint32]holding{},
	}
}

// Close ends all lookups; later ones find nothing.
func (p *Programs) Close() error {
	if p == nil {
		return nil
	}
	return p.diag.close()
}

// Connected returns the program that has a TCP connection between two addresses, or nil.
func (p *Programs) Connected(from, to netip.AddrPort) *policy.Process {
	if p == nil {
		return nil
	}
	return p.behind(p.diag.connected(from, to), p.patience)
}

// Sent returns the program with a UDP socket on an address, or nil. It returns nil, too, if several sockets
// have the address.
func (p *Programs) Sent(from netip.AddrPort) *policy.Process {
	if p == nil {
		return nil
	}
	return p.behind(p.diag.bound(from), p.patience)
}

// Listening returns the program with a TCP listener that takes connections to an address, or nil. It takes up to two
// seconds: nobody waits for it but who starts egressd.
func (p *Programs) Listening(at netip.AddrPort) *policy.Process {
	if p == nil {
		return nil
	}
	return p.behind(p.diag.listening(at), 2*time.Second)
}

// Listeners returns where TCP servers listen in the network.
func (p *Programs) Listeners() []netip.AddrPort {
	if p == nil {
		return nil
	}
	return p.diag.listeners()
}

// behind returns the program that holds the socket with an inode, or nil for inode 0.
func (p *Programs) behind(inode uint32, patience time.Duration) *policy.Process {
	if inode == 0 {
		return nil
	}
	left := &effort{time.Now().Add(patience), processesMost, descriptorsMost}
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

// holder returns the process that holds inode, and its folder in /proc, which the caller closes. Another
// process that gets the same ID does not appear in that folder.
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

// enter opens the /proc folder of a process in the jail's network, or returns -1.
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

// list notes all sockets of a process, because lookups of its other sockets usually follow.
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

// arguments reads the arguments of a process. These are in the memory of the process, which can map it from its
// own file system or from nowhere (userfaultfd(2)) and thus block every reader. A few goroutines may block
// until that process ends; meanwhile arguments returns nil for all processes.
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

// descendants returns a process and its descendants, as far as left allows. On a machine with many processes
// this is much cheaper than listing all of them.
func descendants(pid int, left *effort) []int {
	all := []int{pid}
	for next := 0; next < len(all) && len(all) < left.processes && !time.Now().After(left.until); next++ {
		all = append(all, children(all[next])...)
	}
	slices.Reverse(all) // the last ones first
	return all
}

// children returns the children of a process's threads, at most as many as fit into childrenBytes.
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

// processes returns all process IDs, the newest first.
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

// socketInode is the inverse of socketLink. It returns 0 for other links.
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
