package containers

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/egressd/egressd/sandbox"
)

const (
	aliveEvery    = 5 * time.Second // how often the engine is asked whether it is there
	alivePatience = 3 * time.Second
	retryFirst    = 250 * time.Millisecond
	retryMost     = 5 * time.Second
)

// Watch follows the engine until ctx is done. It is called once.
func (c *Engine) Watch(ctx context.Context) {
	c.ctx = ctx
	defer c.api.close()
	defer c.working.Wait()
	delay := retryFirst
	for ctx.Err() == nil {
		began := time.Now()
		err := c.follow(ctx)
		if ctx.Err() != nil {
			return
		}
		_, before := c.state()
		c.lose(err)
		if before == nil || errors.Is(before, errNotAsked) {
			c.Health(err)
		}
		if time.Since(began) > retryMost {
			delay = retryFirst
		}
		select {
		case <-ctx.Done():
		case <-time.After(delay):
		}
		delay = min(2*delay, retryMost)
	}
}

// follow subscribes to events, then lists what runs, and returns when the engine stops answering.
func (c *Engine) follow(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	filters := url.QueryEscape(`{"type":["container","network"]}`)
	happens, err := c.api.stream(ctx, "/events?filters="+filters)
	if err != nil {
		return err
	}
	ended := make(chan error, 1)
	go func() {
		defer happens.Close()
		ended <- c.read(happens)
	}()
	if err := c.load(ctx); err != nil {
		return err
	}
	c.change(func() []*known { c.trouble = nil; return nil })
	c.Health(nil)
	alive := time.NewTicker(aliveEvery)
	defer alive.Stop()
	for {
		select {
		case err := <-ended:
			return err
		case <-ctx.Done():
			return ctx.Err()
		case <-alive.C:
			if err := c.ping(ctx); err != nil {
				return err
			}
		}
	}
}

// ping asks whether the engine answers. An engine that hangs sends no events.
func (c *Engine) ping(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, alivePatience)
	defer cancel()
	return c.api.get(ctx, "/_ping", nil)
}

// load lists the networks and the containers. Goroutines ask about each container.
func (c *Engine) load(ctx context.Context) error {
	if err := c.loadBridges(ctx); err != nil {
		return err
	}
	c.mu.RLock()
	missing := map[string]bool{}
	for id := range c.before {
		missing[id] = true
	}
	c.mu.RUnlock()
	var all []struct {
		ID string `json:"Id"`
	}
	if err := c.api.get(ctx, "/containers/json", &all); err != nil {
		return err
	}
	for _, one := range all {
		delete(missing, one.ID)
		c.look(one.ID)
	}
	for id := range missing {
		c.drop(id)
	}
	return nil
}

func (c *Engine) loadBridges(ctx context.Context) error {
	var all []struct {
		Driver string
		IPAM   struct {
			Config []struct{ Subnet, Gateway string }
		}
	}
	if err := c.api.get(ctx, "/networks", &all); err != nil {
		return err
	}
	var bridges []bridge
	for _, n := range all {
		for _, i := range n.IPAM.Config {
			if net, err := netip.ParsePrefix(i.Subnet); err == nil && n.Driver == "bridge" {
				gateway, _ := netip.ParseAddr(strings.TrimSuffix(i.Gateway, fmt.Sprintf("/%d", net.Bits())))
				bridges = append(bridges, bridge{net.Masked(), gateway})
			}
		}
	}
	c.change(func() []*known { c.bridges = bridges; return nil })
	return nil
}

// An event is a change that the engine reports.
type event struct {
	Type, Action string
	Actor        struct {
		ID         string
		Attributes map[string]string
	}
}

// read handles events until the stream ends.
func (c *Engine) read(r io.Reader) error {
	in := json.NewDecoder(r)
	for {
		var e event
		if err := in.Decode(&e); err != nil {
			return fmt.Errorf("the engine says no more of what happens: %w", err)
		}
		c.happened(&e)
	}
}

// happened handles an event. It drops an ended container before anything else is asked or read.
func (c *Engine) happened(e *event) {
	switch e.Type + " " + e.Action {
	case "container die", "container destroy", "container remove", "container died":
		c.drop(e.Actor.ID)
	case "container start", "container restart", "container rename", "container unpause":
		c.look(e.Actor.ID)
	case "network disconnect":
		id := e.Actor.Attributes["container"]
		c.drop(id)
		c.look(id)
	case "network connect":
		c.look(e.Actor.Attributes["container"])
	case "network create", "network destroy", "network remove":
		c.working.Go(func() { _ = c.loadBridges(c.ctx) }) // that nobody can be asked, ping finds out
	}
}

// look asks about a container on a goroutine, and once more if the container changes meanwhile.
func (c *Engine) look(id string) {
	if !isContainerID(id) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if l := c.looking[id]; l != nil {
		l.again = true
		return
	}
	l := &lookedAt{}
	c.looking[id] = l
	c.working.Go(func() {
		for c.ask(id, l) && c.ctx.Err() == nil {
		}
	})
}

func (c *Engine) ask(id string, l *lookedAt) (again bool) {
	c.looks <- struct{}{}
	d, err := c.api.describe(c.ctx, id)
	<-c.looks
	if err != nil {
		d = nil
	}
	again = c.learn(id, l, d)
	var answer *answerError
	gone := errors.As(err, &answer) && answer.status == http.StatusNotFound
	if err != nil && !gone && !again {
		time.AfterFunc(askAgain, func() {
			if c.ctx.Err() == nil {
				c.look(id)
			}
		})
	}
	return again
}

func isContainerID(text string) bool {
	return len(text) == containerIDLength && strings.Trim(text, "0123456789abcdef") == ""
}

const containerIDLength = 64

// Running asks an engine once for the running containers.
func Running(ctx context.Context, socket string) (all []*sandbox.Container, err error) {
	c := New(socket)
	defer c.api.close()
	var ids []struct {
		ID string `json:"Id"`
	}
	if err := c.api.get(ctx, "/containers/json", &ids); err != nil {
		return nil, err
	}
	for _, one := range ids {
		if !isContainerID(one.ID) {
			continue
		}
		d, err := c.api.describe(ctx, one.ID)
		if err != nil || !d.State.Running {
			continue // it has ended since
		}
		k := d.known()
		k.process.Close()
		all = append(all, k.Container)
	}
	return all, nil
}
