! Writes or reads 2-D fields as records of a direct-access file, as HYCOM's routines zaiowr and zaiord do, and prints how
! often and how long in the form of its timers. The twin in C, hycom.c, makes the same system calls on these files.
!
!   hycom write DIRECTORY IDM JDM CALLS FIELDS SYNC    archives of FIELDS records, two files by turns
!   hycom read  DIRECTORY IDM JDM CALLS FIELDS SYNC    records of the first archive, from the first one again after FIELDS
!
! SYNC is 1 for an fsync before each close after writing.
program hycom
  use, intrinsic :: iso_c_binding, only: c_int
  use, intrinsic :: iso_fortran_env, only: error_unit, int64, real32, real64
  implicit none

  interface
    function c_fsync(descriptor) bind(c, name='fsync') result(status)
      import :: c_int
      integer(c_int), value :: descriptor
      integer(c_int) :: status
    end function
  end interface

  type :: timer
    integer :: calls = 0
    real(real64) :: total = 0, longest = 0
  end type

  integer, parameter :: unit = 1001
  ! Records are whole numbers of 4096 words; what is behind the field has HYCOM's mark of no data.
  integer, parameter :: block_words = 4096
  real(real32), parameter :: no_data = 2.0_real32**100

  character(len=4096) :: mode, directory
  integer :: words, points, calls, fields, sync
  type(timer) :: opens, records, closes
  real(real32), allocatable :: w(:)

  call get_command_argument(1, mode)
  call get_command_argument(2, directory)
  points = number(3) * number(4)
  calls = number(5)
  fields = number(6)
  sync = number(7)
  words = (points + block_words - 1) / block_words * block_words
  allocate (w(words))

  call transfer_all(mode == 'write')
  call show('zaiopn', opens)
  call show(merge('zaiowr', 'zaiord', mode == 'write'), records)
  call show('zaiocl', closes)

contains

  subroutine transfer_all(is_write)
    logical, intent(in) :: is_write
    integer :: i, record
    do i = 0, calls - 1
      record = mod(i, fields) + 1
      if (i == 0 .or. (is_write .and. record == 1)) then
        if (i > 0) call close_file(is_write)
        call open_file(is_write, mod(i / fields, 2) + 1)
      end if
      if (is_write) then
        call fill(record)
        call zaiowr(record)
      else
        call zaiord(record)
        call compare(record)
      end if
    end do
    call close_file(is_write)
  end subroutine

  subroutine open_file(is_write, which)
    logical, intent(in) :: is_write
    integer, intent(in) :: which
    character(len=8) :: name
    integer :: status
    integer(int64) :: start
    write (name, '(a,i0,a)') 'archv', which, '.a'
    start = now()
    if (is_write) then
      open (unit=unit, file=trim(directory)//'/'//trim(name), form='unformatted', access='direct', &
            recl=4*words, status='replace', action='readwrite', iostat=status)
    else
      open (unit=unit, file=trim(directory)//'/'//trim(name), form='unformatted', access='direct', &
            recl=4*words, status='old', action='read', iostat=status)
    end if
    call count_call(opens, start)
    call expect(status, 'open '//trim(directory)//'/'//trim(name))
  end subroutine

  subroutine zaiowr(record)
    integer, intent(in) :: record
    integer :: status
    integer(int64) :: start
    start = now()
    write (unit=unit, rec=record, iostat=status) w
    call count_call(records, start)
    call expect(status, 'write a record')
  end subroutine

  subroutine zaiord(record)
    integer, intent(in) :: record
    integer :: status
    integer(int64) :: start
    start = now()
    read (unit=unit, rec=record, iostat=status) w
    call count_call(records, start)
    call expect(status, 'read a record')
  end subroutine

  subroutine close_file(is_write)
    logical, intent(in) :: is_write
    integer :: status
    integer(int64) :: start
    start = now()
    if (is_write .and. sync == 1) then
      flush (unit, iostat=status)
      call expect(status, 'flush')
      call expect(int(c_fsync(int(fnum(unit), c_int))), 'fsync')
    end if
    close (unit, iostat=status)
    call count_call(closes, start)
    call expect(status, 'close')
  end subroutine

  pure real(real32) function value_at(record, i)
    integer, intent(in) :: record, i
    value_at = real(mod(record, 8192), real32) + real(mod(i, 1024), real32) / 1024
  end function

  subroutine fill(record)
    integer, intent(in) :: record
    integer :: i
    do i = 1, points
      w(i) = value_at(record, i)
    end do
    w(points + 1:) = no_data
  end subroutine

  subroutine compare(record)
    integer, intent(in) :: record
    integer :: i
    logical :: is_right
    is_right = all(w(points + 1:) == no_data)
    do i = 1, points
      is_right = is_right .and. w(i) == value_at(record, i)
    end do
    if (.not. is_right) call fail('a record that was read is not what was written')
  end subroutine

  integer(int64) function now()
    call system_clock(now)
  end function

  subroutine count_call(this, start)
    type(timer), intent(inout) :: this
    integer(int64), intent(in) :: start
    integer(int64) :: rate
    real(real64) :: seconds
    seconds = real(now() - start, real64)
    call system_clock(count_rate=rate)
    seconds = seconds / rate
    this%calls = this%calls + 1
    this%total = this%total + seconds
    this%longest = max(this%longest, seconds)
  end subroutine

  subroutine show(name, this)
    character(len=*), intent(in) :: name
    type(timer), intent(in) :: this
    write (*, '(5x,a,"   calls =",i9,"   time =",f14.8,"   time/call =",f14.8,"   longest =",f14.8)') &
      name, this%calls, this%total, this%total / max(this%calls, 1), this%longest
  end subroutine

  integer function number(position)
    integer, intent(in) :: position
    character(len=32) :: text
    integer :: status
    call get_command_argument(position, text)
    read (text, *, iostat=status) number
    call expect(status, 'read an argument')
  end function

  subroutine expect(status, what)
    integer, intent(in) :: status
    character(len=*), intent(in) :: what
    if (status /= 0) call fail('cannot '//what)
  end subroutine

  subroutine fail(what)
    character(len=*), intent(in) :: what
    write (error_unit, '(a)') 'hycom: '//what
    stop 1
  end subroutine

end program
