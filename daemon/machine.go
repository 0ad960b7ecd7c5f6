package daemon

import (
	"net/netip"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/daemon/hostpaths"
	"github.com/egressd/egressd/dns"
)

const (
	resolvConf = "/etc/resolv.conf"

	machineEvery = time.Second // between two looks at the machine's files
)

// A machineFile is a file of the machine that egressd reads again when it changes. It is fixed if somebody else could
// change it and so choose where an allowed name leads: a program that this user runs, or another container that has the file.
type machineFile struct {
	path  string
	fixed bool
	seen  fileState
}

type fileState struct {
	changed time.Time
	size    int64
	inode   uint64
}

func newMachineFile(path string) machineFile {
	return machineFile{path: path, fixed: hostpaths.MayChange(path) || hostpaths.IsShared(path), seen: stateOf(path)}
}

func stateOf(path string) fileState {
	info, err := os.Stat(path)
	if err != nil {
		return fileState{}
	}
	s := fileState{changed: info.ModTime(), size: info.Size()}
	if file, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode = file.Ino
	}
	return s
}

// changes reports whether the file is another one than when it was seen last.
func (m *machineFile) changes() bool { return !m.fixed && stateOf(m.path) != m.seen }

// machine is what the files of egressd's machine say of names: the system's name servers, and the hosts file, unless that is
// fixed.
type machine struct {
	mu       sync.Mutex // guards what follows
	looked   time.Time
	servers  machineFile
	hosts    machineFile
	table    map[string][]netip.Addr // of hosts
	search   []string                // of servers
	searched fileState               // of servers, when search was read
	config   *config.Config          // whose name servers are asked
}

func newMachine(c *config.Config) *machine { return newMachineAt(c, resolvConf, dns.HostsPath) }

func newMachineAt(c *config.Config, servers, hosts string) *machine {
	m := &machine{servers: newMachineFile(servers), hosts: newMachineFile(hosts), config: c}
	if !m.hosts.fixed {
		m.readHosts()
	}
	m.search, m.searched = dns.SystemSearch(servers), m.servers.seen
	return m
}

func (m *machine) readHosts() {
	m.hosts.seen = stateOf(m.hosts.path)
	f, err := os.Open(m.hosts.path)
	if err != nil {
		return // one that is missing for a moment is as it was
	}
	defer f.Close()
	m.table = dns.HostAddrs(dns.ReadHosts(f))
}

// follow looks at the files, once in machineEvery, and returns another forwarder if there are other name servers. Ones that
// make no sense, as in a file that is half written, are looked at again.
func (m *machine) follow() *dns.Forwarder {
	m.mu.Lock()
	defer m.mu.Unlock()
	now := time.Now()
	if now.Sub(m.looked) < machineEvery {
		return nil
	}
	m.looked = now
	if m.hosts.changes() {
		m.readHosts()
	}
	if state := stateOf(m.servers.path); !m.servers.fixed && state != m.searched {
		m.search, m.searched = dns.SystemSearch(m.servers.path), state
	}
	if !m.config.AsksSystem() || !m.servers.changes() {
		return nil
	}
	state := stateOf(m.servers.path)
	f, err := forwarderTo(m.config, m.servers.path)
	if err != nil {
		return nil
	}
	m.servers.seen = state
	return f
}

// addrs returns the addresses that the hosts file has for a name.
func (m *machine) addrs(name string) []netip.Addr {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.table[name]
}

// domains returns the search list of the system.
func (m *machine) domains() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.search
}

// use has another configuration count.
func (m *machine) use(c *config.Config) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.config, m.servers.seen = c, stateOf(m.servers.path)
}
