#!/usr/bin/perl
# Stands in for Chromium: a program in Chromium's place that attacks its parent process, browserd. It tries the same on a
# child of its own, which shows that the attempts work where nothing forbids them. It reports three lines on standard error,
# which browserd repeats when it reports that its browser does not start:
#
#     browserd mem=13 fd=13 …      each attempt with its errno, or "ok"
#     child mem=ok fd=ok …
#     descriptors 0:/dev/null …    what it inherited
#
# It uses no modules, because the sandbox shows only a part of perl's library.
my %numbers = "@ARCH@" eq "aarch64"
    ? (ptrace => 117, vm_readv => 270, tgkill => 131, tkill => 130, prlimit => 261, affinity => 122, ioprio => 30, sigqueue => 138)
    : (ptrace => 101, vm_readv => 310, tgkill => 234, tkill => 200, prlimit => 302, affinity => 203, ioprio => 251, sigqueue => 129);
my ($pidfd_send, $pidfd_open, $pidfd_getfd) = (424, 434, 438);
my $there = "a text in memory";

sub result { my ($worked) = @_; return $worked ? "ok" : $! + 0 }
sub called { return result(syscall($_[0], @_[1 .. $#_]) != -1) }
sub reads { my ($path) = @_; my ($file, $bytes); return result(open($file, "<", $path) && defined sysread($file, $bytes, 16)) }
sub opens { my ($mode, $path) = @_; return result(open(my $file, $mode, $path)) }

sub attack {
    my ($pid) = @_;
    my $proc = "/proc/$pid";
    my @tried;
    my $try = sub { my ($name, $outcome) = @_; push @tried, "$name=$outcome" };
    $try->("mem", opens("<", "$proc/mem"));
    $try->("mem-write", opens("+<", "$proc/mem"));
    $try->($_, reads("$proc/$_")) for "environ", "maps", "smaps", "auxv", "io";
    $try->($_, result(opendir(my $folder, "$proc/$_"))) for "fd", "fdinfo", "root", "cwd", "task/$pid/fd";
    $try->("link-$_", result(defined readlink("$proc/$_"))) for "root", "cwd", "exe", "fd/2", "ns/user";
    $try->("oom_score_adj", opens("+<", "$proc/oom_score_adj"));
    $try->("comm", opens("+<", "$proc/comm"));
    $try->("kill", result(kill(0, $pid)));
    # kill(2) cannot name the groups 0 and 1, which browserd may have in a PID namespace of its own: there 0 means the
    # caller's group and -1 every process that the caller may signal.
    my $group = getpgrp($pid);
    $try->("kill-group", result(kill(0, -$group))) if $group > 1;
    $try->("tgkill", called($numbers{tgkill}, $pid + 0, $pid + 0, 0));
    $try->("tkill", called($numbers{tkill}, $pid + 0, 0));
    my $info = pack("i3 x4 i2 x104", 0, 0, -1, $$, $<);
    $try->("sigqueue", called($numbers{sigqueue}, $pid + 0, 18, $info));
    my $pidfd = syscall($pidfd_open, $pid + 0, 0);
    $try->("pidfd_send_signal", called($pidfd_send, $pidfd, 0, 0, 0));
    $try->("pidfd_getfd", called($pidfd_getfd, $pidfd, 2, 0));
    my $copy = "\0" x length($there);
    my ($to, $from) = map { pack("P Q", $_, length($there)) } $copy, $there;
    $try->("process_vm_readv", called($numbers{vm_readv}, $pid + 0, $to, 1, $from, 1, 0));
    my $limit = pack("QQ", 0, 0);
    $try->("prlimit", called($numbers{prlimit}, $pid + 0, 4, $limit, 0));
    $try->("setpriority", result(setpriority(0, $pid, 19)));
    $try->("setpriority-group", result(setpriority(1, $group, 19))) if $group;
    $try->("sched_setaffinity", called($numbers{affinity}, $pid + 0, 128, "\xff" x 128));
    $try->("ioprio_set", called($numbers{ioprio}, 1, $pid + 0, (2 << 13) | 7));
    $try->("ptrace", called($numbers{ptrace}, 0x4206, $pid + 0, 0, 0));
    return "@tried";
}

opendir(my $own, "/proc/self/fd");
my @inherited = map { "$_:" . readlink("/proc/self/fd/$_") } sort { $a <=> $b } grep { /^\d+$/ } readdir($own);
closedir($own);

my $child = fork();
if (!$child) {
    setpgrp(0, 0);
    sleep 60;
    exit;
}
# The child has its own process group, as browserd has.
select(undef, undef, undef, 0.01) until getpgrp($child) == $child;
my $report = "browserd " . attack(getppid()) . "\nchild " . attack($child) . "\ndescriptors @inherited\n";
kill("KILL", $child);
syswrite(STDERR, $report);
exit 7;
