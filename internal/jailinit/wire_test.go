package jailinit

import (
	"bytes"
	"os"
	"reflect"
	"testing"
)

// messages have every field set, also those that are added later.
func messages(t *testing.T) []Message {
	all := []Message{new(Word), new(Plan), new(Report), new(Failure), new(Program)}
	for _, m := range all {
		fill(t, reflect.ValueOf(m).Elem(), "")
	}
	return all
}

// fill gives a value, and whatever is in it, one that is not zero.
func fill(t *testing.T, v reflect.Value, path string) {
	switch v.Kind() {
	case reflect.Bool:
		v.SetBool(true)
	case reflect.String:
		v.SetString("of " + path + " \x00\xff\n")
	case reflect.Uint8, reflect.Uint16, reflect.Uint32:
		v.SetUint(255)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 3, 3))
		for i := range 3 {
			fill(t, v.Index(i), path)
		}
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(t, v.Elem(), path)
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(t, key, path)
		fill(t, value, path)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			if name := v.Type().Field(i); name.IsExported() {
				fill(t, v.Field(i), path+"."+name.Name)
			}
		}
	default:
		t.Fatalf("%s is of a kind that a message has not had: %s", path, v.Kind())
	}
}

func TestAMessageArrivesAsItWas(t *testing.T) {
	for _, m := range messages(t) {
		got := reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
		if err := Unpack(Pack(m), got); err != nil || !reflect.DeepEqual(got, m) {
			t.Errorf("%T: %+v, %v; sent %+v", m, got, err, m)
		}
		empty := reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
		if err := Unpack(Pack(empty), got); err != nil || !reflect.DeepEqual(got, empty) {
			t.Errorf("%T: an empty one over another: %+v, %v", m, got, err)
		}
	}
	if text := Pack(new(Word)); len(text) == 0 {
		t.Error("a message that looks like the end")
	}
}

func TestAMessageThatIsCutIsNone(t *testing.T) {
	for _, m := range messages(t) {
		text := Pack(m)
		for n := range text {
			if Unpack(text[:n], reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)) == nil {
				t.Errorf("%T: %d bytes of %d are taken for it", m, n, len(text))
			}
		}
		if Unpack(append(text, 0), reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)) == nil {
			t.Errorf("%T: a byte too much is passed over", m)
		}
	}
}

// What is read is never larger than what was sent, whatever that says.
func FuzzMessages(f *testing.F) {
	f.Add(Pack(&Plan{IPv4: []byte{1, 2, 3, 4}, HostPorts: []uint16{1, 65535}}))
	f.Add(Pack(&Program{Argv: []string{"true"}, Apart: &Apart{Private: []Private{{Path: "/tmp", Mode: os.ModePerm}}}, Covered: map[string][]byte{"/etc/x": []byte("y")}}))
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, m := range []Message{new(Word), new(Plan), new(Report), new(Failure), new(Program)} {
			if Unpack(bytes.Clone(text), m) != nil {
				continue
			}
			again := reflect.New(reflect.TypeOf(m).Elem()).Interface().(Message)
			if err := Unpack(Pack(m), again); err != nil || !reflect.DeepEqual(again, m) {
				t.Errorf("%T: %+v, %v; was %+v", m, again, err, m)
			}
		}
	})
}
