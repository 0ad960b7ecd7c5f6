package fair

import (
	"testing"
	"time"
)

var start = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

func TestABucketIsFullAtFirstAndFillsAgain(t *testing.T) {
	b := Bucket{Rate: 2, Most: 3}
	for i := range 3 {
		if ok, _ := b.Take(1, start); !ok {
			t.Fatalf("token %d was not there", i)
		}
	}
	if ok, _ := b.Take(1, start); ok {
		t.Error("a fourth was there")
	}
	if ok, _ := b.Take(1, start.Add(400*time.Millisecond)); ok {
		t.Error("one was there after 0.4 s at 2 a second")
	}
	if ok, _ := b.Take(1, start.Add(500*time.Millisecond)); !ok {
		t.Error("none was there after 0.5 s at 2 a second")
	}
	if ok, _ := b.Take(4, start.Add(time.Hour)); ok {
		t.Error("it held more than its most")
	}
	if ok, _ := b.Take(3, start.Add(time.Hour)); !ok {
		t.Error("it was not full after an hour, though nothing was taken")
	}
}

func TestTimeDoesNotGoBack(t *testing.T) {
	b := Bucket{Rate: 1, Most: 1}
	b.Take(1, start)
	b.Take(1, start.Add(-time.Hour))
	if ok, _ := b.Take(1, start.Add(500*time.Millisecond)); ok {
		t.Error("a time of the past filled the bucket")
	}
}

func TestRefusalsAreCountedAndSaidOnceASecond(t *testing.T) {
	var none Bucket
	said := 0
	for i := range 10 {
		ok, refused := none.Take(1, start.Add(time.Duration(i)*300*time.Millisecond))
		if ok {
			t.Fatal("the zero bucket had a token")
		}
		if said += refused; refused > 0 && i%4 != 0 {
			t.Errorf("said at take %d", i)
		}
	}
	if said != 9 {
		t.Errorf("%d refusals were said, want 9: the last is not told yet", said)
	}
}

func TestABucketIsFullAgain(t *testing.T) {
	b, now := &Bucket{Rate: 2, Most: 10}, time.Now()
	if !b.Full(now) {
		t.Error("one that was never used is not full")
	}
	b.Take(4, now)
	if b.Full(now.Add(time.Second)) || !b.Full(now.Add(2*time.Second)) {
		t.Error("four tokens, two a second, do not take two seconds")
	}
	if b.Full(now.Add(-time.Hour)) {
		t.Error("it was full when time went back")
	}
}
