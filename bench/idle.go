//go:build linux

package main

import (
	"cmp"
	"time"
)

const (
	idleWarmUp = 64              // tunnels, opened and closed before the first look
	idleSettle = 2 * time.Second // for collectors, and for the kernel to free what it defers
)

// idleCell measures a proxy of its own, freshly started: one that has served
// keeps memory that would hide what tunnels take.
func (b *bench) idleCell(c *contender) (cell, error) {
	var r *running
	if c.proxy != nil {
		var err error
		if r, err = c.proxy.start(b.base, b.origins); err != nil {
			return cell{}, err
		}
		defer r.stop()
	}
	j := b.job(holdJob, c, r)
	j.Tunnels = idleWarmUp
	if _, _, err := b.holdAndLook(j, r); err != nil {
		return cell{}, err
	}
	if _, err := b.order(job{Kind: releaseJob}); err != nil {
		return cell{}, err
	}
	j.Tunnels = 0
	_, before, err := b.holdAndLook(j, r)
	if err != nil {
		return cell{}, err
	}
	j.Tunnels = b.tunnels
	opened, after, err := b.holdAndLook(j, r)
	if err != nil {
		return cell{}, err
	}
	released, err := b.order(job{Kind: releaseJob})
	opened.Errors += released.Errors
	opened.First = cmp.Or(opened.First, released.First)
	return cell{
		result: opened,
		own:    after.own.per(before.own, opened.Ops),
		kernel: after.kernel.per(before.kernel, opened.Ops),
	}, err
}

// footprint is memory in KiB.
type footprint struct {
	own, kernel kib
}

type kib int64

// per returns the growth since before for each of n.
func (k kib) per(before kib, n int64) float64 { return float64(k-before) / float64(n) }

// holdAndLook opens tunnels and, when all is quiet, reads the memory.
func (b *bench) holdAndLook(j job, r *running) (result, footprint, error) {
	opened, err := b.order(j)
	if err != nil {
		return opened, footprint{}, err
	}
	time.Sleep(min(b.length, idleSettle))
	own, err := r.ownKiB()
	if err != nil {
		return opened, footprint{}, err
	}
	kernel, err := kernelKiB()
	return opened, footprint{kib(own), kib(kernel)}, err
}
