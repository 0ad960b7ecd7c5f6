//go:build linux

package daemon

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/egressd/egressd/config"
	"github.com/egressd/egressd/internal/hint"
	"github.com/egressd/egressd/policy"
	"github.com/egressd/egressd/record"
	"github.com/egressd/egressd/sandbox"
	"github.com/egressd/egressd/sandbox/containers"
)

// containersPatience is how long the start waits for the engine's list of running containers. Without the list, each
// request from a container waits on its own.
const containersPatience = 3 * time.Second

// An engineWatch knows the containers that are sandboxes. A nil one knows none.
type engineWatch struct {
	*containers.Engine
	stop     context.CancelFunc
	watching sync.WaitGroup

	mu   sync.Mutex
	lost error // what the operator was told last
	told chan struct{}
}

// watchContainers has sandboxes be known by their containers from now on, where the
// configuration asks for that; then those that run are known soon.
func (d *Daemon) watchContainers(c *config.Config) {
	if d.containers != nil {
		d.containers.Each(d.contained) // they may be of other sandboxes now
		return
	}
	if !c.File.AsksDocker() || c.Who != nil { // a run has one sandbox, whatever is listed
		return
	}
	w := &engineWatch{Engine: containers.New(c.EngineSocket()), told: make(chan struct{})}
	first := sync.OnceFunc(func() { close(w.told) })
	w.Started = d.contained
	w.Ended = func(k *policy.Container) {
		d.Gate.Flows.CutContainer(k)
		d.Gate.Approvals.RunEnded(&policy.Sandbox{Container: k})
	}
	w.Health = func(err error) {
		d.engineHealth(w, err)
		first()
	}
	ctx, stop := context.WithCancel(context.Background())
	w.stop = stop
	d.containers = w
	d.sandboxes.SetEngine(w.Engine)
	w.watching.Go(func() { w.Watch(ctx) })
	select {
	case <-w.told:
	case <-time.After(containersPatience):
	}
}

// engineHealth tells the operator and the log when the container engine stops answering, and when it answers again.
func (d *Daemon) engineHealth(w *engineWatch, err error) {
	w.mu.Lock()
	was := w.lost
	w.lost = err
	w.mu.Unlock()
	var note string
	switch {
	case err != nil && was == nil:
		note = "containers are unknown, and thus refused: the engine cannot be asked: " + err.Error()
	case err == nil && was != nil:
		note = "containers are known again: the engine answers"
	default:
		return
	}
	recorded := d.Gate.Records.Note(record.KindRecovery, clipped(note))
	if err != nil {
		hint.Write(d.Talk, errors.New(note), "start Docker, or let egressd's user read and write the socket that docker.socket names; it is asked again by itself")
	} else {
		fmt.Fprintf(d.Talk, "egressd: %s\n", note)
	}
	if recorded != nil {
		d.Complain(recorded)
	}
}

// contained speaks up where a container would be two sandboxes, and is none then.
func (d *Daemon) contained(k *sandbox.Container) {
	names := d.sandboxes.Claims(k)
	if len(names) < 2 {
		return
	}
	note := fmt.Sprintf("the container %.128s is that of the sandboxes %s by what tells them, so that it is nobody, and refused", k.Name, strings.Join(names, " and "))
	err := d.Gate.Records.NoteSandbox(record.KindPolicy, policy.Sandbox{Container: k.Container}, nil, clipped(note))
	hint.Write(d.Talk, errors.New(note), "let docker of one sandbox alone fit it, in "+d.Path)
	if err != nil {
		d.Complain(err)
	}
}

func (c *engineWatch) close() {
	if c != nil {
		c.stop()
		c.watching.Wait()
	}
}
