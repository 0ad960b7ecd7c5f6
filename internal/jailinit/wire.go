package jailinit

import (
	"encoding/binary"
	"errors"
	"os"
	"slices"
)

// A Message crosses the control socket. Both ends are the same program, so its form needs no version. It is not
// JSON, because encoding/json spends more time on learning the types than on everything else here.
type Message interface {
	// fields hands each field to a wire, which writes it or reads it.
	fields(*wire)
}

// Pack is a message as Send sends it. It is never empty.
func Pack(m Message) []byte {
	w := wire{text: []byte{1}}
	if p, ok := m.(*Program); ok {
		w.text = append(make([]byte, 0, p.size()), w.text...)
	}
	m.fields(&w)
	return w.text
}

var errMessage = errors.New("a message that cannot be read")

// Unpack is the other end of Pack.
func Unpack(text []byte, into Message) error {
	if len(text) == 0 || text[0] != 1 {
		return errMessage
	}
	w := wire{text: text[1:], reading: true}
	if into.fields(&w); w.bad || len(w.text) > 0 {
		return errMessage
	}
	return nil
}

// A wire is the text of a message while it is written or read. Values that are read may share the wire's
// memory.
type wire struct {
	text         []byte
	reading, bad bool
}

func (w *wire) number(n *uint64) {
	if !w.reading {
		w.text = binary.AppendUvarint(w.text, *n)
		return
	}
	value, size := binary.Uvarint(w.text)
	if size <= 0 {
		w.bad, w.text, value = true, nil, 0
	}
	*n, w.text = value, w.text[max(size, 0):]
}

// length is a number that what is left of the text has room for, a byte each.
func (w *wire) length(n int) int {
	value := uint64(n)
	if w.number(&value); w.reading && value > uint64(len(w.text)) {
		w.bad, w.text, value = true, nil, 0
	}
	return int(value)
}

func (w *wire) bytes(b *[]byte) {
	n := w.length(len(*b))
	switch {
	case !w.reading:
		w.text = append(w.text, *b...)
	case n == 0:
		*b = nil
	default:
		*b, w.text = w.text[:n:n], w.text[n:]
	}
}

func (w *wire) string(s *string) {
	b := []byte(*s)
	if w.bytes(&b); w.reading {
		*s = string(b)
	}
}

func (w *wire) flags(all ...*bool) {
	for _, flag := range all {
		n := uint64(0)
		if *flag {
			n = 1
		}
		w.number(&n)
		*flag = n == 1
	}
}

func (w *wire) strings(all *[]string) { each(w, all, w.string) }

// each has do write or read every element.
func each[T any](w *wire, all *[]T, do func(*T)) {
	n := w.length(len(*all))
	if w.reading {
		*all = nil
		if n > 0 {
			*all = make([]T, n)
		}
	}
	for i := range *all {
		do(&(*all)[i])
	}
}

// A Word says whether to go on.
type Word bool

func (d *Word) fields(w *wire) { w.flags((*bool)(d)) }

func (p *Plan) fields(w *wire) {
	w.bytes(&p.IPv4)
	w.bytes(&p.IPv6)
	w.flags(&p.Redirect, &p.Dialers, &p.Again, &p.Interface, &p.Root)
	each(w, &p.HostPorts, func(port *uint16) {
		n := uint64(*port)
		w.number(&n)
		*port = uint16(n)
	})
	w.strings(&p.Devices)
}

func (r *Report) fields(w *wire) {
	each(w, &r.Sockets, func(k *SocketKind) { w.string((*string)(k)) })
	w.flags(&r.Redirected)
	each(w, &r.Held, w.descriptor)
	w.string(&r.Step)
	w.string(&r.Err)
}

func (w *wire) descriptor(fd *uint32) {
	n := uint64(*fd)
	w.number(&n)
	*fd = uint32(n)
}

func (f *Failure) fields(w *wire) {
	each(w, &f.Tried, func(a *WayOut) { w.string(&a.Name); w.string(&a.Escaped) })
	w.strings(&f.Removable)
	w.descriptor(&f.Listener)
	each(w, &f.Served, w.descriptor)
	w.string(&f.Problem)
	w.flags(&f.Foreground, &f.Missing, &f.Setup)
}

// size is about how long a program is when it is packed, in bytes.
func (p *Program) size() (n int) {
	const others = 16 << 10
	for path, text := range p.Covered {
		n += len(path) + len(text)
	}
	for _, s := range slices.Concat(p.Argv, p.Env) {
		n += len(s) + 1
	}
	return n + others
}

func (p *Program) fields(w *wire) {
	w.strings(&p.Argv)
	w.strings(&p.Env)
	p.apart(w)
	w.strings(&p.Hidden)
	w.strings(&p.HostSockets)
	w.strings(&p.Services)
	w.string(&p.AgentSocket)
	w.string(&p.Agent)
	p.covered(w)
	w.strings(&p.Fixed)
	w.flags(&p.Nested, &p.Packets)
}

func (p *Program) apart(w *wire) {
	there := p.Apart != nil
	if w.flags(&there); !there {
		p.Apart = nil
		return
	}
	if w.reading {
		p.Apart = new(Apart)
	}
	w.string(&p.Apart.Work)
	w.string(&p.Apart.Home)
	w.strings(&p.Apart.Shared)
	w.strings(&p.Apart.Served)
	each(w, &p.Apart.Private, func(f *Private) {
		mode := uint64(f.Mode)
		w.string(&f.Path)
		w.number(&mode)
		w.flags(&f.Make)
		f.Mode = os.FileMode(mode)
	})
}

func (p *Program) covered(w *wire) {
	type file struct {
		path string
		text []byte
	}
	var all []file
	for path, text := range p.Covered {
		all = append(all, file{path, text})
	}
	each(w, &all, func(f *file) { w.string(&f.path); w.bytes(&f.text) })
	if !w.reading {
		return
	}
	p.Covered = nil
	if len(all) > 0 {
		p.Covered = make(map[string][]byte, len(all))
	}
	for _, f := range all {
		p.Covered[f.path] = f.text
	}
}
