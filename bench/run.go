//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// roleVariable names the environment variable by which bench starts itself
// as its load generator or its origins.
const roleVariable = "EGRESSD_BENCH_ROLE"

// A roleProcess is bench in another role. It speaks JSON on its standard
// input and output and ends when its input does.
type roleProcess struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *json.Decoder
}

func startRole(role string, errOut io.Writer) (*roleProcess, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(self)
	// Preemption signals would interrupt the blocking calls of the workers.
	cmd.Env = append(os.Environ(), roleVariable+"="+role, "GODEBUG=asyncpreemptoff=1", "GOGC=400")
	cmd.Stderr = errOut
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting the %s process: %w", role, err)
	}
	return &roleProcess{cmd, in, json.NewDecoder(out)}, nil
}

func (p *roleProcess) stop() {
	// It ends with its input; what it then says of that is of no interest.
	_ = p.in.Close()
	_ = p.cmd.Wait()
}

// A contender is what is measured: a proxy, or direct, whose proxy is nil.
type contender struct {
	name    string
	proxy   *proxy
	hello   []byte
	running *running
}

// A bench is one run of the program.
type bench struct {
	options
	errOut     io.Writer
	base       string // temporary directory
	origins    origins
	originRole *roleProcess
	load       *roleProcess
	ordered    int // jobs, so far
	contenders []*contender
	absent     []string
}

func run(ctx context.Context, args []string, out, errOut io.Writer) error {
	o, err := parseOptions(args, errOut)
	if errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	b := &bench{options: o, errOut: errOut}
	defer b.close()
	if err := b.open(); err != nil {
		return err
	}
	rows, err := b.measure(ctx)
	return errors.Join(err, b.report(out, rows))
}

func (b *bench) report(out io.Writer, rows []row) error {
	if b.json {
		return writeJSON(out, rows)
	}
	if err := writeTable(out, rows); err != nil {
		return err
	}
	for _, line := range b.absent {
		if _, err := fmt.Fprintln(out, line); err != nil {
			return err
		}
	}
	return nil
}

// open starts everything that is measured or measures.
func (b *bench) open() error {
	if err := raiseDescriptorLimit(); err != nil {
		return err
	}
	var err error
	if b.base, err = os.MkdirTemp("", "egressd-bench-"); err != nil {
		return err
	}
	if err := os.Chmod(b.base, 0o755); err != nil {
		return err
	}
	if b.originRole, err = startRole("origin", b.errOut); err != nil {
		return err
	}
	if err := b.originRole.out.Decode(&b.origins); err != nil {
		return fmt.Errorf("waiting for the origins: %w", err)
	}
	if b.load, err = startRole("load", b.errOut); err != nil {
		return err
	}
	return b.enter()
}

// raiseDescriptorLimit lets bench, and by inheritance everything that it
// starts, open as many descriptors as the hard limit allows.
func raiseDescriptorLimit() error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("reading the limit of descriptors: %w", err)
	}
	limit.Cur = limit.Max
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("raising the limit of descriptors: %w", err)
	}
	return nil
}

// enter finds the contenders and starts those that are present.
func (b *bench) enter() error {
	if err := b.add(&proxy{name: direct, host: originName}, nil); err != nil {
		return err
	}
	if b.egressd != "" {
		for _, v := range b.variants {
			v.hosts = b.hosts
			if err := b.add(b.variant(v)); err != nil {
				return err
			}
			if b.before == "" || v.off {
				continue
			}
			if err := b.add(egressd(b.before, "before", v)); err != nil {
				return err
			}
		}
	}
	for _, name := range b.peers {
		if err := b.add(peer(name, b.source, b.base)); err != nil {
			return err
		}
	}
	return nil
}

// variant returns how to start egressd in a variant, or an [*absence].
func (b *bench) variant(v variant) (*proxy, error) {
	binary := b.egressd
	if v.off {
		var err error
		if binary, err = forgetful(b.source, b.base); err != nil {
			return nil, err
		}
	}
	return egressd(binary, "egressd", v)
}

func (b *bench) add(p *proxy, err error) error {
	var gone *absence
	if errors.As(err, &gone) {
		b.absent = append(b.absent, gone.Error())
		return nil
	} else if err != nil {
		return err
	}
	c := &contender{name: p.name}
	if c.hello, err = recordHello(serverName(p.host)); err != nil {
		return err
	}
	if p.command != nil {
		c.proxy = p
		if c.running, err = p.start(b.base, b.origins); err != nil {
			return err
		}
	}
	b.contenders = append(b.contenders, c)
	return nil
}

// serverName is the name for the hello to an origin known as host; addresses
// have no place in it.
func serverName(host string) string {
	if net.ParseIP(host) != nil {
		return originName
	}
	return host
}

func (b *bench) close() {
	for _, c := range b.contenders {
		if c.running != nil {
			c.running.stop()
		}
	}
	for _, role := range []*roleProcess{b.load, b.originRole} {
		if role != nil {
			role.stop()
		}
	}
	if b.base != "" {
		if err := os.RemoveAll(b.base); err != nil {
			fmt.Fprintf(b.errOut, "bench: cannot clean up: %v\n", err)
		}
	}
}

// measure runs all cells, the contenders of a round right after one another.
func (b *bench) measure(ctx context.Context) ([]row, error) {
	var rows []row
	for _, s := range b.scenarios {
		if s.alone != nil {
			more, err := s.alone(b, ctx)
			if rows = append(rows, more...); err != nil {
				return rows, fmt.Errorf("%s: %w", s.name, err)
			}
			continue
		}
		contenders := b.contendersOf(s)
		cells := make([][]cell, len(contenders))
		for round := range b.rounds {
			for i, c := range contenders {
				if err := ctx.Err(); err != nil {
					return rows, fmt.Errorf("stopped early: %w", err)
				}
				measured, err := b.cell(s, c)
				if err != nil {
					return rows, fmt.Errorf("%s, %s: %w", s.name, c.name, err)
				}
				cells[i] = append(cells[i], measured)
				b.tell(s, c, round, measured)
			}
		}
		for i, c := range contenders {
			rows = append(rows, summariseCells(s, c.name, lessKernel(cells[i], cells[0]), cells[0]))
		}
	}
	return rows, nil
}

// tell says what came of one cell.
func (b *bench) tell(s scenario, c *contender, round int, measured cell) {
	cost := ""
	if s.cost != nil && c.proxy != nil {
		cost = ", CPU " + significant(number(s.cost(measured))) + " " + s.costUnit
	}
	fmt.Fprintf(b.errOut, "bench: %s %d/%d %s: %s %s%s\n", s.name, round+1, b.rounds, c.name, significant(number(s.value(measured))), s.unit, cost)
}

// contendersOf returns who takes part in a scenario, direct first.
func (b *bench) contendersOf(s scenario) (taking []*contender) {
	for _, c := range b.contenders {
		if c.proxy == nil || c.proxy.takesPart(s) {
			taking = append(taking, c)
		}
	}
	return taking
}

func (p *proxy) takesPart(s scenario) bool {
	switch {
	case s.inside:
		return p.certificate != "" && (p.h2 || !s.h2)
	case p.tunnelsOnly:
		return s.kind != httpJob
	}
	return !p.insideOnly
}

// lessKernel takes from every cell what the ends of a tunnel cost the kernel
// without a proxy between them.
func lessKernel(cells, bases []cell) []cell {
	less := make([]cell, len(cells))
	for i, c := range cells {
		c.kernel -= bases[i].kernel
		less[i] = c
	}
	return less
}

const (
	warmUp = 200 * time.Millisecond
	settle = 50 * time.Millisecond // for what a proxy does after the last answer
)

func (b *bench) cell(s scenario, c *contender) (cell, error) {
	if s.kind == holdJob {
		return b.idleCell(c)
	}
	j := b.job(s.kind, c, c.running)
	if s.inside {
		var err error
		if j.Roots, err = b.roots(c); err != nil {
			return cell{}, err
		}
	}
	j.Workers = s.workers
	j.Length = min(b.length, warmUp)
	if _, err := b.order(j); err != nil {
		return cell{}, err
	}
	time.Sleep(settle)
	before, err := c.running.cpu()
	if err != nil {
		return cell{}, err
	}
	j.Length = b.length
	r, err := b.order(j)
	if err != nil {
		return cell{}, err
	}
	time.Sleep(settle)
	after, err := c.running.cpu()
	return cell{result: r, cpu: after - before}, err
}

// roots returns the certificate that vouches for what a client hears inside a
// tunnel through c: the proxy's own, or that of the origin's authority.
func (b *bench) roots(c *contender) ([]byte, error) {
	if c.proxy == nil {
		return b.origins.Root, nil
	}
	return os.ReadFile(filepath.Join(c.running.dir, c.proxy.certificate))
}

// cpu returns the CPU time used so far, 0 for no proxy.
func (r *running) cpu() (time.Duration, error) {
	if r == nil {
		return 0, nil
	}
	return cpuTime(r.cmd.Process.Pid)
}

func (r *running) ownKiB() (int64, error) {
	if r == nil {
		return 0, nil
	}
	return ownKiB(r.cmd.Process.Pid)
}

func (b *bench) job(kind jobKind, c *contender, r *running) job {
	j := job{Kind: kind, Host: originName, Origins: b.origins, Hello: c.hello, Workers: 1}
	if r != nil {
		j.Proxy, j.Host = r.port, c.proxy.host
	}
	return j
}

func (b *bench) order(j job) (result, error) {
	b.ordered++
	j.Serial = b.ordered
	if err := json.NewEncoder(b.load.in).Encode(j); err != nil {
		return result{}, fmt.Errorf("ordering a job: %w", err)
	}
	var r result
	if err := b.load.out.Decode(&r); err != nil {
		return result{}, fmt.Errorf("waiting for a result: %w", err)
	}
	return r, nil
}
